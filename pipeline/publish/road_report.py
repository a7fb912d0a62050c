"""Reads what scripts/prepare measured: weights/NAME.road.json beside a checkpoint, by key, whatever else is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.publish.errors import PublishError
from serving.weights import VerifiedWeights

_MAX_BYTES = 16 << 20
_LONG = 24  # entries of a table that a card leaves out, such as one row for each layer
_PATH = re.compile(r"(?<![^\s='\"(])(?:~|\.{0,2})/(?:[^\s'\"),;]*/)?(?=[^\s'\"),;/])")


def read_road(weights: VerifiedWeights, report: Path | None) -> tuple[dict[str, Any], str | None]:
    """The report, and why there is none.

    Args:
        weights: the checkpoint. A report that lists other files is not used: its figures are not of these weights.
        report: the file; None looks beside the folder.

    Raises:
        PublishError: the file was named and is not there, or is no report.
    """
    path = weights.directory.resolve().with_name(f"{weights.directory.resolve().name}.road.json")
    path = path if report is None else report
    if not path.is_file():
        if report is not None:
            raise PublishError(f"{report}: no such file")
        return {}, "no record of how these weights were made lies beside them"
    try:
        road = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_BYTES else None
    except ValueError as error:
        raise PublishError(f"{path} is not JSON: {error}") from error
    if not isinstance(road, dict):
        raise PublishError(f"{path} is no report of scripts/prepare; give another with --report")
    recorded = road.get("files")
    recorded = recorded if isinstance(recorded, dict) else {}
    ours = {file.path: file.digest.removeprefix("sha256:") for file in weights.files}
    # Options of a task may change afterwards; the tensors may not.
    changed = [name for name in ours if name.endswith(".safetensors") and _digest(recorded.get(name)) != ours[name]]
    if changed:
        return {}, f"the record beside these weights is of another {changed[0]}"
    return road, None


def _digest(entry: object) -> str | None:
    value = entry.get("sha256") if isinstance(entry, dict) else entry
    return value.removeprefix("sha256:") if isinstance(value, str) else None


def source_of(entry: object) -> str | None:
    """Where a base or an adapter came from; of a folder on somebody's machine the name only."""
    value = entry.get("source") if isinstance(entry, dict) else entry
    return plain(value) if isinstance(value, str) and value else None


def figures(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Numbers, words and short lists in a report by their dotted names; no long tables, and no commands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "command" or (isinstance(inner, dict) and len(inner) > _LONG):
                continue
            yield from figures(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        if len(value) <= 8 and all(isinstance(item, str | int | float) for item in value):
            yield prefix, ", ".join(plain(item) for item in value)
    elif value is not None:
        yield prefix, plain(value)


def plain(value: object) -> str:
    """A value as a table cell shows it. Paths of somebody's machine are cut to their last part."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _PATH.sub("", str(value))
    return " ".join(text.split()).replace("|", "\\|")[:200]
