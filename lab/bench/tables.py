"""Tables of a result for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from lab.bench.compare import Change

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


def engine_table(result: Mapping[str, Any]) -> Table:
    """The figures, with one line for each engine."""
    table = Table(title="One request at a time, 8 and 32 at once; medians")
    table.add_column("engine")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
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
    table = Table(title="How many times better the paged engine is: median of the rounds (lowest–highest)")
    table.add_column("peer")
    for name in names:
        table.add_column(name, justify="right")
    for peer, found in result["ratios"].items():
        table.add_row(peer, *(_ratio(found.get(name)) for name in names))
    return table


def answer_table(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    """How many answers of each engine equal the paged engine's."""
    table = Table(title="Answers, compared with the paged engine's")
    names = ("answers", "valid", "compared", "same_text", "same_query", "other_query")
    table.add_column("engine")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for engine, counts in answers.items():
        table.add_row(engine, *(str(counts[name]) for name in names))
    return table


def change_table(changes: Sequence[Change]) -> Table:
    """The figures that changed beyond noise."""
    table = Table(title="Since the earlier result, beyond the noise")
    for heading in ("workload", "engine", "figure", "was ms", "is ms", "ratio", "99 %"):
        table.add_column(heading, justify="right" if "ms" in heading or heading == "ratio" else "left")
    for c in changes:
        word, interval = "slower" if c.is_slower else "faster", f"{c.low:.2f}–{c.high:.2f}"
        if c.is_slower or c.is_faster:
            cells = f"{c.old_ms:.1f}", f"{c.new_ms:.1f}", f"{c.ratio:.2f} {word}", interval
            table.add_row(c.workload, c.engine, c.figure, *cells)
    return table


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _ratio(value: Mapping[str, float] | None) -> str:
    return "" if value is None else f"{value['median']:.1f} ({value['low']:.1f}–{value['high']:.1f})"
