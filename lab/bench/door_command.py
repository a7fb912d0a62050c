"""The command line of scripts/dev/bench_door: what the door costs, against Cog's server alone."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from lab.bench.door_measures import (
    QUICK,
    Amounts,
    measure_pages,
    measure_requests,
    measure_servers,
    measure_start,
    measure_streams,
)
from lab.bench.door_servers import ServerFailedError
from lab.bench.machine import describe_checkout, describe_machine
from pipeline.weights.default_weights import ensure_weights

app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_PACKAGES = ("cog", "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "aiohttp", "aiosqlite")


_PARTS: dict[str, Callable[[Amounts, Path], dict[str, Any]]] = {
    "predictions one at a time and by many clients": measure_requests,
    "one Cog server and two": measure_servers,
    "open streams": measure_streams,
    "scripts/serve until the playground answers": measure_start,
    "findings of axe-core on the pages": measure_pages,
}


@app.command()
def bench_door(
    json_file: Annotated[Path | None, typer.Option("--json", help="file for the result")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="only check that everything works")] = False,
) -> None:
    """Measure the door: its overhead, many clients, two Cog servers, many streams, its start, findings on its pages."""
    ensure_weights()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    amounts = QUICK if quick else Amounts()
    about = {
        "command": " ".join(["scripts/dev/bench_door", *sys.argv[1:]]),
        **describe_machine(),
        **describe_checkout(),
    }
    about["versions"] |= {name: metadata.version(name) for name in _PACKAGES}
    try:
        with tempfile.TemporaryDirectory(prefix="door") as folder:
            result = {**about, **measure(amounts, Path(folder))}
    except ServerFailedError as error:
        _console.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key not in about}))


def measure(amounts: Amounts, folder: Path) -> dict[str, Any]:
    """All figures."""
    result: dict[str, Any] = {}
    for name, part in _PARTS.items():
        _console.print(name)
        result |= part(amounts, folder)
    return result
