"""The result of a run: as a file, as one line for other programs, and as tables for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter
from rich.table import Column, Table

from lab.bench.figures import Change, Run, engine_figures, overhead_share, passes_per_answer, ratios, where_time_goes
from lab.bench.lineup import Entry
from lab.bench.machine import VERSION
from pipeline.weights.atomic import write_text

DIGITS = 4  # significant digits of figures; samples have microseconds
COLUMNS = {  # heading: figure, format
    "TTFT ms": ("ttft_ms", ".0f"),
    "TPOT ms": ("tpot_ms", ".1f"),
    "p50 ms": ("e2e_ms_p50", ".0f"),
    "p95 ms": ("e2e_ms_p95", ".0f"),
    "seen p50": ("e2e_ms_p50_seen", ".0f"),
    "passes": ("passes", ".1f"),
    "tok/s": ("tokens_per_s", ".0f"),
    "answers/s 8": ("answers_per_s_8", ".2f"),
    "32": ("answers_per_s_32", ".2f"),
    "200 free ms": ("free_e2e_ms_p50", ".0f"),
    "ready s": ("ready_s", ".1f"),
    "RSS MB": ("rss_mb", ".0f"),
}
_RUNS = TypeAdapter(list[Run])


class ResultError(Exception):
    """The file is not a result of this benchmark."""


def make_result(runs: Sequence[Run], entries: Mapping[str, Entry], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole result, including samples."""
    splits = {name: where_time_goes(runs, name) for name in entries}
    return {
        **about,
        "passes_per_answer": _short(passes_per_answer(runs)),
        "time_ms": _short(splits),
        "overhead_share": _short({name: overhead_share(split) for name, split in splits.items()}),
        "engines": {name: _engine(runs, name, entry) for name, entry in entries.items()},
        "ratios": _short(ratios(runs, entries)),
        "runs": [_compact(asdict(run)) for run in runs],
    }


def last_line(result: Mapping[str, Any]) -> str:
    """The result as one line of JSON, without samples."""
    keys = ("passes_per_answer", "engines", "ratios", "passes", "time_ms", "overhead_share")
    figures = {key: result.get(key) for key in keys}
    return json.dumps(figures, ensure_ascii=False)


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write a result file: the figures first, then one run on each line."""
    head = json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1, ensure_ascii=False)
    runs = ",\n  ".join(json.dumps(run, ensure_ascii=False) for run in result["runs"])
    write_text(path, f'{head[:-2]},\n "runs": [\n  {runs}\n ]\n}}\n')


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
    return _RUNS.validate_python(result["runs"])


def _engine(runs: Sequence[Run], name: str, entry: Entry) -> dict[str, Any]:
    peer = entry.peer
    figures = engine_figures(runs, name)
    if entry.ready_seconds:
        figures["ready_s"] = median(entry.ready_seconds)
    for key in ("rss_mb", "pss_mb"):
        if entry.memory:
            figures[key] = max(memory[key] for memory in entry.memory)
    about = {"weights": entry.weights, "note": peer.note, "error": entry.error}
    return {**_short(figures), **about, "ready_s_all": _short(entry.ready_seconds), "versions": entry.versions}


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
            for key, value in reply.items()
            if key in ("key", "ttft", "e2e") or value
        }
        for reply in run["replies"]
    ]
    return {**run, "wall": round(run["wall"], 6), "cpu": round(run["cpu"], 6), "replies": replies}


def engine_table(result: Mapping[str, Any]) -> Table:
    """The figures, with one line for each engine."""
    table = Table("engine", *map(_figures, COLUMNS), title="One request at a time, 8 and 32 at once; medians")
    for name, figures in result["engines"].items():
        if figures["error"] is not None and "e2e_ms_p50" not in figures:
            table.add_row(name, f"failed: {figures['error'].splitlines()[0]:.60}")
            continue
        cells = (_cell(figures.get(key), form) for key, form in COLUMNS.values())
        table.add_row(name, *cells)
    return table


def ratio_table(result: Mapping[str, Any]) -> Table:
    """How many times better our engine is than each peer."""
    names = list(dict.fromkeys(name for found in result["ratios"].values() for name in found))
    title = "How many times better the paged engine is: median of the rounds (lowest–highest)"
    table = Table("peer", *map(_figures, names), title=title)
    for peer, found in result["ratios"].items():
        table.add_row(peer, *(_ratio(found.get(name)) for name in names))
    return table


def answer_table(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    """How many answers of each engine equal the paged engine's."""
    names = ("answers", "valid", "compared", "same_text", "same_query", "other_query")
    headings = (_figures(name.replace("_", " ")) for name in names)
    table = Table("engine", *headings, title="Answers, compared with the paged engine's")
    for engine, counts in answers.items():
        table.add_row(engine, *(str(counts[name]) for name in names))
    return table


def change_table(changes: Sequence[Change]) -> Table:
    """The figures that changed beyond noise."""
    figures = map(_figures, ("was ms", "is ms", "ratio"))
    title = "Since the earlier result, beyond the noise"
    table = Table("workload", "engine", "figure", *figures, "99 %", title=title)
    for c in changes:
        word, interval = "slower" if c.is_slower else "faster", f"{c.low:.2f}–{c.high:.2f}"
        if c.is_slower or c.is_faster:
            cells = f"{c.old_ms:.1f}", f"{c.new_ms:.1f}", f"{c.ratio:.2f} {word}", interval
            table.add_row(c.workload, c.engine, c.figure, *cells)
    return table


def _figures(heading: str) -> Column:
    return Column(heading, justify="right")


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _ratio(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['median']:.1f} ({value['low']:.1f}–{value['high']:.1f})"
