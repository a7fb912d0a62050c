"""The command line of scripts/dev/endure: runs the rows, shows a table, writes a result."""

from __future__ import annotations

import math
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from lab.bench.machine import describe_checkout, describe_machine
from lab.endurance.cancel_storm import cancel_storm
from lab.endurance.damaged_weights import damaged_weights
from lab.endurance.engine_death import engine_death
from lab.endurance.fuzz import fuzz
from lab.endurance.hostile_grammars import hostile_grammars
from lab.endurance.overload import overload
from lab.endurance.restarts import restarts
from lab.endurance.row import QUICK, Amounts, Check, Result, Row, counts, verdict
from lab.endurance.rude_clients import rude_clients
from lab.endurance.same_id import same_id
from lab.endurance.scarce_resources import scarce_resources
from lab.endurance.small_cache import small_cache
from lab.endurance.soak import soak
from lab.endurance.stage import SMALL, Stage
from pipeline.weights.atomic import write_json
from pipeline.weights.default_weights import ensure_recipe

ROWS: Final = (  # in their order
    Row("cancel", "cancel storm", cancel_storm),
    Row("soak", "soak", soak),
    Row("cache", "KV cache at 25 % of demand", small_cache),
    Row("death", "engine killed, stopped", engine_death),
    Row("restart", "SIGTERM, SIGKILL and restart", restarts),
    Row("overload", "overload ×10", overload),
    Row("id", "the same id many times at once", same_id),
    Row("rude", "rude clients", rude_clients),
    Row("weights", "damaged weights", damaged_weights),
    Row("scarce", "full disk, little memory", scarce_resources),
    Row("fuzz", "fuzz", fuzz),
    Row("grammar", "hostile schemas", hostile_grammars),
)
app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_PACKAGES = ("cog", "coglet", "llguidance", "aiohttp")
_COLOURS = {"passed": "green", "failed": "red"}


@app.command()
def endure(
    minutes: Annotated[float, typer.Option(min=0.1, help="for the whole run; the soak ends after half of them")] = 20,
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the result")] = None,
    only: Annotated[list[str] | None, typer.Option(help="name of a row; may be given several times")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="every row with tiny amounts, without limits on time")] = False,
) -> None:
    """Do to a real server what the world does, and say what was lost. Exit code 1 if a row fails."""
    rows = _chosen(only or ())
    amounts = QUICK if quick else replace(Amounts(), minutes=minutes)
    ensure_recipe(SMALL)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about = {"command": " ".join(["scripts/dev/endure", *sys.argv[1:]]), **describe_machine(), **describe_checkout()}
    about["versions"] |= {name: metadata.version(name) for name in _PACKAGES}
    with tempfile.TemporaryDirectory(prefix="endure") as folder:
        found = run_rows(rows, amounts, Path(folder))
    verdicts = {row.name: verdict(result, amounts) for row, (result, _) in zip(rows, found, strict=True)}
    _console.print(_table(rows, found, amounts))
    if json_file is not None:
        content = {**about, "amounts": asdict(amounts), "rows": _record(rows, found, verdicts)}
        write_json(json_file, content)
    raise typer.Exit(int("failed" in verdicts.values()))


def run_rows(rows: Sequence[Row], amounts: Amounts, folder: Path) -> list[tuple[Result, float]]:
    """Run rows one after the other; their results, and how many seconds each took."""
    found = []
    with closing(Stage(folder)) as stage:
        for row in rows:
            _console.print(f"{row.title} …", highlight=False)
            began = time.monotonic()
            found.append((_run(row, stage, amounts), time.monotonic() - began))
            _console.print(f"{row.title}: {verdict(found[-1][0], amounts)} ({found[-1][1]:.0f} s)", highlight=False)
    return found


def _run(row: Row, stage: Stage, amounts: Amounts) -> Result:
    """A row that breaks off has failed, and the others go on."""
    try:
        return row.run(stage, amounts)
    except Exception:
        stage.close()
        return Result((Check("rows that broke off", 1, 0),), losses=(traceback.format_exc(limit=-3),))


def _chosen(names: Sequence[str]) -> list[Row]:
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{unknown[0]} is no row; there are {', '.join(known)}", param_hint="--only")
    return [row for row in ROWS if not names or row.name in names]


def _table(rows: Sequence[Row], found: Sequence[tuple[Result, float]], amounts: Amounts) -> Table:
    table = Table("row", "what", "figure", "limit", "")
    for row, (result, seconds) in zip(rows, found, strict=True):
        word = verdict(result, amounts)
        name = f"{row.title} ({seconds:.0f} s)"
        for check in result.checks:
            is_counted = counts(check, amounts)
            colour = "green" if check.passed else "red" if is_counted else "yellow"
            figure = f"[{colour}]{_number(check.figure)} {check.unit}[/]"
            remark = "" if check.passed or is_counted else "[yellow]over, not counted[/]"
            table.add_row(name, check.what, figure, f"{_number(check.limit)} {check.unit}", remark)
            name = ""
        table.add_row(name, "", "", "", f"[{_COLOURS[word]}]{word}[/]", end_section=True)
        for loss in result.losses:
            _console.print(f"{row.title}: {loss}", markup=False, soft_wrap=True)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


def _record(
    rows: Sequence[Row], found: Sequence[tuple[Result, float]], verdicts: dict[str, Any]
) -> list[dict[str, Any]]:
    return [
        {
            "row": row.title,
            "verdict": verdicts[row.name],
            "seconds": round(seconds, 1),
            "checks": [_check_record(check) for check in result.checks],
            "about": dict(result.about),
            "losses": list(result.losses),
        }
        for row, (result, seconds) in zip(rows, found, strict=True)
    ]


def _check_record(check: Check) -> dict[str, Any]:
    figure = round(check.figure, 4) if math.isfinite(check.figure) else None
    return {"what": check.what, "figure": figure, "limit": check.limit, "unit": check.unit, "passed": check.passed}
