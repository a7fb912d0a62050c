"""The model card of a checkpoint on the hub: what was measured while it was made, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from pipeline.prepare.record import find_record
from pipeline.publish.errors import PublishError
from serving.text.tokenizer import read_json
from serving.weights import VerifiedWeights

_MARK: Final = re.compile(r"\n<!-- written by scripts/push, sha256 ([0-9a-f]{64}) -->\n\Z")
_HUB: Final = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@[\w./-]+)?")
_SETTINGS: Final = ("quant_method", "format", "bits", "group_size", "zero_point", "version")
_MAX_ROWS: Final = 60
_MAX_BYTES: Final = 16 << 20  # of a report
_LONG: Final = 24  # entries of a table that a card leaves out, such as one row for each layer
_PATH: Final = re.compile(r"(?<![^\s='\"(])(?:~|\.{0,2})/(?:[^\s'\"),;]*/)?(?=[^\s'\"),;/])")
_USE: Final = Template("""## Use it
In a clone of the repository whose `scripts/push` wrote this card:

```
scripts/fetch hf://$repo weights/$name
scripts/new_package ../$name --weights weights/$name$task
cd ../$name
scripts/serve
```

`scripts/new_package` says which engines run these weights, and locks them: a server starts only if every byte matches.
""")


def model_card(repo: str, weights: VerifiedWeights, record: dict[str, Any], reason: str | None) -> str:
    """The card's text, with its metadata in front and a mark at the end.

    Args:
        repo: the repository where it will be: `organisation/name`.
        record: the record of scripts/prepare; may be empty.
        reason: why it is empty.
    """
    names = {file.path for file in weights.files}
    config = read_json(weights.directory / "config.json") if "config.json" in names else {}
    task = read_json(weights.directory / "task.json") if "task.json" in names else {}
    name = repo.partition("/")[2]
    parts = [
        _metadata(record, config),
        f"# {name}\n",
        _summary(weights, record, config, task),
        _table("Comparison: before and after quantization", _figures(record.get("comparison", record.get("gate")))),
        _table("Evaluation", _figures(record.get("evaluation"))),
        _steps(record),
        f"No figures are given, because {reason}.\n" if reason is not None else "",
        _USE.substitute(repo=repo, name=weights.name, task="" if task else " --task TASK"),
        _table("Files", ((f"`{file.path}`", f"{file.size:,} bytes, {file.digest}") for file in weights.files)),
    ]
    text = "\n".join(part for part in parts if part)
    return f"{text}\n<!-- written by scripts/push, sha256 {_digest(text)} -->\n"


def is_ours(text: str) -> bool:
    """Whether a card was written by this package and not edited since."""
    mark = _MARK.search(text)
    return mark is not None and mark[1] == _digest(text[: mark.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _metadata(record: dict[str, Any], config: dict[str, Any]) -> str:
    values: dict[str, Any] = {"pipeline_tag": "text-generation"}
    base = _HUB.fullmatch(_source_of(record.get("base")) or "")
    if base is not None:
        values["base_model"] = base[1]
    quantization = config.get("quantization_config")
    tags = ["cog"]
    if isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str):
        tags.append(quantization["quant_method"])
    return f"---\n{yaml.safe_dump(values | {'tags': tags}, sort_keys=False)}---"


def _summary(weights: VerifiedWeights, record: dict[str, Any], config: dict[str, Any], task: dict[str, Any]) -> str:
    rows: dict[str, str | None] = {
        "base": _source_of(record.get("base")),
        "adapter": _source_of(record.get("adapter")),
        "merge": _settings(_report(record, "merge"), ("rounding", "changed", "tensors")),
        "relative error of the merge against the live adapter": _settings(_merge_errors(record), None),
        "architecture": _plain((config.get("architectures") or [None])[0] or "") or None,
        "quantization": _settings(config.get("quantization_config"), _SETTINGS) or "none",
        "left in 16 bits": _sixteen_bits(config),
        "calibration": _settings(_report(record, "quantize"), ("calibration_tokens", "made_with")),
        "task": _plain(task.get("task") or record.get("task") or "") or None,
        "size": f"{sum(file.size for file in weights.files):,} bytes in {len(weights.files)} files",
        "digest of the set in weights.lock": f"`{weights.set_digest}`",
        "made": _plain(record.get("made") or "") or None,
        "on": _settings(record.get("machine"), None),
    }
    return _table("", ((key, value) for key, value in rows.items() if value))


def _sixteen_bits(config: dict[str, Any]) -> str | None:
    quantization = config.get("quantization_config")
    names = quantization.get("modules_to_not_convert") if isinstance(quantization, dict) else None
    return f"{len(names)} linear layers" if isinstance(names, list) and names else None


def _report(record: dict[str, Any], name: str) -> dict[str, Any]:
    """What a step said of its work. Later tries are named `NAME-…`, and count where they say the same."""
    found: dict[str, Any] = {}
    steps = record.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and str(step.get("name")).partition("-")[0] == name:
            report = step.get("report")
            found |= report if isinstance(report, dict) else {}
    return found


def _merge_errors(record: dict[str, Any]) -> object:
    differences = _report(record, "merge").get("differences")
    return differences.get("all") if isinstance(differences, dict) else None


def _settings(value: object, keys: tuple[str, ...] | None) -> str:
    """The named entries of a report in one cell; all of them without names."""
    if isinstance(value, str):
        return _plain(value)
    chosen = value if isinstance(value, dict) else {}
    if keys is not None:
        chosen = {key: chosen[key] for key in keys if key in chosen}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in _figures(chosen))


def _steps(record: dict[str, Any]) -> str:
    rows = []
    steps = record.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(step.get("wall_seconds"), int | float):
            peak = step.get("peak_memory_bytes")
            memory = f", {peak / 2**30:.2f} GiB at the peak" if isinstance(peak, int) else ""
            rows.append((_plain(step.get("name")), f"{step['wall_seconds']:.1f} s{memory}"))
    return _table("What each step took", iter(rows))


def _table(title: str, rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"| {key} | {value} |" for key, value in rows][:_MAX_ROWS]
    if not lines:
        return ""
    heading = f"## {title}\n" if title else ""
    return heading + "\n".join(["| | |", "|---|---|", *lines]) + "\n"


def recorded(weights: VerifiedWeights, report: Path | None) -> tuple[dict[str, Any], str | None]:
    """What scripts/prepare recorded, and why there is none. It is read by key, whatever else is in it.

    Args:
        weights: the checkpoint. A record that lists other files is not used: its figures are not of these weights.
        report: the file of the record; None looks beside the folder.

    Raises:
        PublishError: the file was named and is not there, or is no record.
    """
    path = find_record(weights.directory.resolve()) if report is None else report
    if path is None:
        return {}, "no record of how these weights were made lies beside them"
    if not path.is_file():
        raise PublishError(f"{path}: no such file")
    try:
        record = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_BYTES else None
    except ValueError as error:
        raise PublishError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise PublishError(f"{path} is no report of scripts/prepare; give another with --report")
    listed = record.get("files")
    listed = listed if isinstance(listed, dict) else {}
    ours = {file.path: file.digest.removeprefix("sha256:") for file in weights.files}
    # Options of a task may change afterwards; the tensors may not.
    changed = [name for name in ours if name.endswith(".safetensors") and _sha256(listed.get(name)) != ours[name]]
    if changed:
        return {}, f"the record beside these weights is of another {changed[0]}"
    return record, None


def _sha256(entry: object) -> str | None:
    value = entry.get("sha256") if isinstance(entry, dict) else entry
    return value.removeprefix("sha256:") if isinstance(value, str) else None


def _source_of(entry: object) -> str | None:
    """Where a base or an adapter came from; of a folder on somebody's machine the name only."""
    value = entry.get("source") if isinstance(entry, dict) else entry
    return _plain(value) if isinstance(value, str) and value else None


def _figures(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The numbers, words and short lists in a report by their dotted names; no long tables, and no commands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "command" or (isinstance(inner, dict) and len(inner) > _LONG):
                continue
            yield from _figures(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        if len(value) <= 8 and all(isinstance(item, str | int | float) for item in value):
            yield prefix, ", ".join(_plain(item) for item in value)
    elif value is not None:
        yield prefix, _plain(value)


def _plain(value: object) -> str:
    """A value as a table cell shows it. Paths of somebody's machine are cut to their last part."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = _PATH.sub("", str(value))
    return " ".join(text.split()).replace("|", "\\|")[:200]
