"""Write and read the result of a run, as a file and as one line for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from lab.bench.breakdown import overhead_share, where_time_goes
from lab.bench.lineup import Entry
from lab.bench.measure import Run
from lab.bench.summary import engine_figures, passes_per_answer, ratios

VERSION = 1
DIGITS = 4  # significant digits of figures; samples have microseconds


class ResultError(Exception):
    """The file is not a result of this benchmark."""


def make_result(runs: Sequence[Run], entries: Mapping[str, Entry], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result, including samples."""
    splits = {name: where_time_goes(runs, name) for name in entries}
    return {
        "version": VERSION,
        **about,
        "passes_per_answer": _short(passes_per_answer(runs)),
        "time_ms": _short(splits),
        "overhead_share": _short({name: overhead_share(split) for name, split in splits.items()}),
        "engines": {name: _engine(runs, name, entry) for name, entry in entries.items()},
        "ratios": _short(ratios(runs, entries)),
        "runs": [_compact(run.to_json()) for run in runs],
    }


def last_line(result: Mapping[str, Any]) -> str:
    """The result as one line of JSON, without samples."""
    keys = ("passes_per_answer", "engines", "ratios", "passes", "time_ms", "overhead_share")
    figures = {key: result.get(key) for key in keys}
    return json.dumps(figures, ensure_ascii=False)


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write a result file: the figures first, then one run on each line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1, ensure_ascii=False)
    runs = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in result["runs"])
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f'{head[:-2]},\n "runs": [\n  {runs}\n ]\n}}\n', encoding="utf-8")
    partial.replace(path)


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file.

    Raises:
        ResultError: it is not a result, or has another version.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = result["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{path}: not a result of scripts/dev/bench: {error}") from error
    if found != VERSION:
        raise ResultError(f"{path} has version {found}, expected {VERSION}; run the benchmark again")
    return result


def read_runs(result: Mapping[str, Any]) -> list[Run]:
    """The runs of a result, with their samples."""
    return [Run.from_json(record) for record in result["runs"]]


def _engine(runs: Sequence[Run], name: str, entry: Entry) -> dict[str, Any]:
    peer = entry.peer
    figures = engine_figures(runs, name)
    if entry.ready_seconds:
        figures["ready_s"] = median(entry.ready_seconds)
    for key in ("rss_mb", "pss_mb"):
        if entry.memory:
            figures[key] = max(memory[key] for memory in entry.memory)
    about = {"weights": entry.weights, "grammar": str(peer.dialect), "note": peer.note, "error": entry.error}
    return {
        **_short(figures),
        **about,
        "ready_s_all": _short(entry.ready_seconds),
        "versions": entry.versions,
    }


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value] if isinstance(value, list) else value


def _compact(run: dict[str, Any]) -> dict[str, Any]:
    """A run with times rounded to microseconds and without default values."""
    replies = [
        {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in (asdict(r) if not isinstance(r, dict) else r).items()
            if key in ("key", "ttft", "e2e") or value
        }
        for r in run["replies"]
    ]
    return {**run, "wall": round(run["wall"], 6), "cpu": round(run["cpu"], 6), "replies": replies}
