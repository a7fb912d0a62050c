"""What each step cost and left, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from pipeline.prepare.road_record import StepRecord

_COLUMNS = ("step", "wall", "processor", "peak memory", "written", "files")


def print_summary(steps: Sequence[StepRecord]) -> None:
    """Print one line for each step on stdout."""
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "step" else "right")
    for step in steps:
        table.add_row(
            step.name,
            f"{step.wall_seconds:.1f} s",
            f"{step.processor_seconds:.1f} s",
            f"{step.peak_memory_bytes / 1e6:,.0f} MB",
            f"{step.bytes_written / 1e6:,.1f} MB",
            str(step.files_written),
        )
    wall, processor = sum(s.wall_seconds for s in steps), sum(s.processor_seconds for s in steps)
    peak = max(s.peak_memory_bytes for s in steps)
    table.add_row("all", f"{wall:.1f} s", f"{processor:.1f} s", f"{peak / 1e6:,.0f} MB", "", "")
    Console(width=100).print(table)
