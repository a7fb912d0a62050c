"""The model card of a checkpoint on the hub: what was measured while it was made, and nothing else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from string import Template
from typing import Any, Final

import yaml

from pipeline.publish.road_report import figures, plain, source_of
from serving.text.tokenizer import read_json
from serving.weights import VerifiedWeights

_MARK: Final = re.compile(r"\n<!-- written by scripts/push, sha256 ([0-9a-f]{64}) -->\n\Z")
_HUB: Final = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@[\w./-]+)?")
_SETTINGS: Final = ("quant_method", "format", "bits", "group_size", "zero_point", "version")
_MAX_ROWS: Final = 60
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


def model_card(repo: str, weights: VerifiedWeights, road: dict[str, Any], reason: str | None) -> str:
    """The card's text, with its metadata in front and a mark at the end.

    Args:
        repo: where it will be: `organisation/name`.
        weights: the checked folder.
        road: the report of scripts/prepare; may be empty.
        reason: why it is empty.
    """
    names = {file.path for file in weights.files}
    config = read_json(weights.directory / "config.json") if "config.json" in names else {}
    task = read_json(weights.directory / "task.json") if "task.json" in names else {}
    name = repo.partition("/")[2]
    parts = [
        _metadata(road, config),
        f"# {name}\n",
        _summary(weights, road, config, task),
        _table("Gate: before and after quantization", figures(road.get("gate"))),
        _table("Evaluation", figures(road.get("evaluation"))),
        _steps(road),
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


def _metadata(road: dict[str, Any], config: dict[str, Any]) -> str:
    values: dict[str, Any] = {"pipeline_tag": "text-generation"}
    base = _HUB.fullmatch(source_of(road.get("base")) or "")
    if base is not None:
        values["base_model"] = base[1]
    quantization = config.get("quantization_config")
    tags = ["cog"]
    if isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str):
        tags.append(quantization["quant_method"])
    return f"---\n{yaml.safe_dump(values | {'tags': tags}, sort_keys=False)}---"


def _summary(weights: VerifiedWeights, road: dict[str, Any], config: dict[str, Any], task: dict[str, Any]) -> str:
    rows: dict[str, str | None] = {
        "base": source_of(road.get("base")),
        "adapter": source_of(road.get("adapter")),
        "merge": _settings(_report(road, "merge"), ("rounding", "changed", "tensors")),
        "relative error of the merge against the live adapter": _settings(_merge_errors(road), None),
        "architecture": plain((config.get("architectures") or [None])[0] or "") or None,
        "quantization": _settings(config.get("quantization_config"), _SETTINGS) or "none",
        "calibration": _settings(_report(road, "quantize"), ("calibration_tokens", "made_with")),
        "task": plain(task.get("task") or road.get("task") or "") or None,
        "size": f"{sum(file.size for file in weights.files):,} bytes in {len(weights.files)} files",
        "digest of the set in weights.lock": f"`{weights.set_digest}`",
        "made": plain(road.get("made") or "") or None,
        "on": _settings(road.get("machine"), None),
    }
    return _table("", ((key, value) for key, value in rows.items() if value))


def _report(road: dict[str, Any], name: str) -> object:
    """What a step of the road said of its work."""
    steps = road.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and step.get("name") == name:
            return step.get("report")
    return None


def _merge_errors(road: dict[str, Any]) -> object:
    report = _report(road, "merge")
    differences = report.get("differences") if isinstance(report, dict) else None
    return differences.get("all") if isinstance(differences, dict) else None


def _settings(value: object, keys: tuple[str, ...] | None) -> str:
    """The named entries of a report in one cell; all of them without names."""
    if isinstance(value, str):
        return plain(value)
    chosen = value if isinstance(value, dict) else {}
    if keys is not None:
        chosen = {key: chosen[key] for key in keys if key in chosen}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in figures(chosen))


def _steps(road: dict[str, Any]) -> str:
    rows = []
    steps = road.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(step.get("wall_seconds"), int | float):
            peak = step.get("peak_memory_bytes")
            memory = f", {peak / 2**30:.2f} GiB at the peak" if isinstance(peak, int) else ""
            rows.append((plain(step.get("name")), f"{step['wall_seconds']:.1f} s{memory}"))
    return _table("What each step took", iter(rows))


def _table(title: str, rows: Iterator[tuple[str, str]]) -> str:
    lines = [f"| {key} | {value} |" for key, value in rows][:_MAX_ROWS]
    if not lines:
        return ""
    heading = f"## {title}\n" if title else ""
    return heading + "\n".join(["| | |", "|---|---|", *lines]) + "\n"
