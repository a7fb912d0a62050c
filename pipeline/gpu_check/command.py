"""The command line of scripts/gpu_check: runs the rows, shows a table, writes a result and a picture."""

from __future__ import annotations

import gc
import math
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from pipeline.benchmark.machine import describe_checkout, describe_machine
from pipeline.gpu_check.check_rows import ROWS
from pipeline.gpu_check.finding import CheckRow, Figure, Finding
from pipeline.gpu_check.machine_rates import measure_rates
from pipeline.gpu_check.place import Place
from pipeline.gpu_check.roofline import draw_roofline
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import weights_or_default
from serving.devices import has_cuda_device

app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_COLOURS = {"right": "green", "wrong": "red", "measured": "green", "not run": "yellow"}


@app.command()
def check(
    weights: Annotated[
        Path | None, typer.Option(help="folder of the checkpoint; by default that of weights.lock", file_okay=False)
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="name of a row; may be given several times")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few seconds for each row")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the result")] = None,
    picture: Annotated[Path | None, typer.Option(help="file for the roofline picture, PNG or SVG")] = None,
) -> None:
    """Check and measure the engines on this machine's GPU; without one, what a CPU can show.

    Exit code 1 if something that ran is wrong.
    """
    rows = _chosen(only or ())
    place = Place(weights_or_default(weights), has_cuda_device(), quick)
    about = _about(place)
    _console.print(about["device"], markup=False, highlight=False)
    found = run_rows(rows, place)
    Console(width=None if sys.stdout.isatty() else 150).print(table_of(rows, found))
    if json_file is not None:
        write_json(json_file, {**about, "rows": _record(rows, found)})
    if picture is not None:
        points = [point for finding, _ in found for point in finding.points]
        draw_roofline(picture, points, measure_rates(place), f"{about['device']} · {about['date']}")
    raise typer.Exit(int(any(finding.verdict == "wrong" for finding, _ in found)))


def run_rows(rows: Sequence[CheckRow], place: Place) -> list[tuple[Finding, float]]:
    """Run rows one after the other; their findings, and how many seconds each took."""
    found = []
    for number, row in enumerate(rows, start=1):
        _console.print(f"{number} of {len(rows)}: {row.title} …", highlight=False)
        begun = time.monotonic()
        try:
            finding = row.run(place)
        except Exception:  # the row is wrong, and the next rows go on
            finding = Finding(wrong=(f"broke off: {traceback.format_exc(limit=-4)}",))
        found.append((finding, time.monotonic() - begun))
        gc.collect()
        if place.has_gpu:
            torch.cuda.empty_cache()  # the next row may start an engine in another process
    return found


def table_of(rows: Sequence[CheckRow], found: Sequence[tuple[Finding, float]]) -> Table:
    """All figures, faults and what was not run, with the reasons."""
    table = Table("row", "what", "figure", "limit", "")
    for row, (finding, seconds) in zip(rows, found, strict=True):
        name = f"{row.title} ({seconds:.0f} s)"
        for figure in finding.figures:
            limit = "" if figure.limit is None else _number(figure.limit)
            colour = "red" if figure.is_wrong else "default"
            table.add_row(name, figure.what, f"[{colour}]{_number(figure.value)} {figure.unit}[/]", limit, figure.note)
            name = ""
        for fault in finding.wrong:
            table.add_row(name, f"[red]{_plain(fault)}[/]")
            name = ""
        for reason in finding.not_run:
            table.add_row(name, f"[yellow]not run: {_plain(reason)}[/]")
            name = ""
        table.add_row("", "", "", "", f"[{_COLOURS[finding.verdict]}]{finding.verdict}[/]", end_section=True)
    return table


def _plain(text: str) -> str:
    """A text without rich's markup."""
    return text.replace("[", "\\[")


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"


def _chosen(names: Sequence[str]) -> list[CheckRow]:
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{unknown[0]} is no row; there are {', '.join(known)}", param_hint="--only")
    return [row for row in ROWS if not names or row.name in names]


def _about(place: Place) -> dict[str, Any]:
    machine = describe_machine()
    device = f"no GPU: {machine['cpu']}, {machine['cores']} cores"
    if place.has_gpu and torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        capability = f"{card.major}.{card.minor}"
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        device = f"{card.name}, {memory}, compute capability {capability}, CUDA {torch.version.cuda}"
    elif place.has_gpu:
        device = f"a GPU that torch {torch.__version__} does not find"
    return {
        "command": shlex.join(["scripts/gpu_check", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "weights": place.weights.name,
        "machine": machine,
        **describe_checkout(),
    }


def _record(rows: Sequence[CheckRow], found: Sequence[tuple[Finding, float]]) -> list[dict[str, Any]]:
    return [
        {
            "row": row.name,
            "verdict": finding.verdict,
            "seconds": round(seconds, 1),
            "figures": [_figure_record(figure) for figure in finding.figures],
            "wrong": list(finding.wrong),
            "not_run": list(finding.not_run),
            "points": [asdict(point) for point in finding.points],
        }
        for row, (finding, seconds) in zip(rows, found, strict=True)
    ]


def _figure_record(figure: Figure) -> dict[str, Any]:
    return asdict(figure) | {"value": figure.value if math.isfinite(figure.value) else None}
