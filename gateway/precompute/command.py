"""The command line of scripts/precompute."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.precompute.gateway_client import GatewayClient, GatewayUnusableError, Outcome
from gateway.precompute.input_lines import InputLine, WrongLine, read_lines
from gateway.precompute.line_runner import LineRunner
from gateway.settings import rename_old_variables

_KEY = ["GATEWAY_API_KEY", "DOOR_API_KEY"]  # environment variables; the second is the old name
app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_TIMEOUT = httpx.Timeout(10, read=90, pool=None)  # the gateway holds an answer back for up to 60 seconds


@app.command()
def precompute(
    file: Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="inputs as JSON Lines; - is stdin")],
    server: Annotated[str, typer.Option(help="address of the gateway")] = "http://127.0.0.1:8080",
    key: Annotated[str | None, typer.Option(envvar=_KEY, help="API key, if it asks for one")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=100, help="predictions at the same time")] = 8,
    refresh: Annotated[bool, typer.Option("--refresh", help="have every answer written again")] = False,
) -> None:
    """Fill the gateway's cache with the answers to a file of inputs.

    Each line of FILE is a JSON object of inputs, or an object that has them
    as "input". The gateway must run with GATEWAY_CACHE_MB. What the cache already
    has costs no time, so the command can be stopped and run again.

    Exit codes: 0 all are cached, 1 a line failed, 2 file or gateway unusable.
    """
    rename_old_variables()
    lines = list(read_lines(file))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # No proxy from the environment: a gateway is often on this machine or in its network.
    client = httpx.AsyncClient(base_url=server, headers=headers, timeout=_TIMEOUT, trust_env=False)
    try:
        num_failed = asyncio.run(_send(lines, client, concurrency, refresh))
    except GatewayUnusableError as error:
        _say(f"error: {error}")
        raise typer.Exit(2) from error
    raise typer.Exit(1 if num_failed else 0)


async def _send(lines: list[InputLine | WrongLine], client: httpx.AsyncClient, concurrency: int, refresh: bool) -> int:
    """Send all lines; how many of them failed.

    Raises:
        GatewayUnusableError: not all were sent.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=_console, disable=not _console.is_terminal)
    task = bar.add_task("", total=len(lines))

    def on_line(problem: WrongLine | None) -> None:
        bar.update(task, completed=runner.num_done, description=f"{_rate(runner, start)} a second")
        if problem is not None:
            _say(f"line {problem.number}: {problem.reason}")

    async with client:
        gateway = GatewayClient(client, refresh=refresh)
        await gateway.connect()
        runner, start = LineRunner(gateway.predict, on_line), time.monotonic()
        try:
            with bar:
                await runner.run(lines, concurrency)
        finally:  # also after Ctrl-C
            _say(_summary(runner, len(lines), start))
    return runner.num_failed


def _summary(runner: LineRunner, num_lines: int, start: float) -> str:
    counts = f"{runner.counts[Outcome.NEW]:,} new, {runner.counts[Outcome.CACHED]:,} already cached"
    rest = num_lines - runner.num_done
    unsent = f", {rest:,} not finished; run it again to continue" if rest else ""
    return f"{num_lines:,} lines: {counts}, {runner.num_failed:,} failed{unsent} ({_rate(runner, start)} a second)"


def _rate(runner: LineRunner, start: float) -> str:
    return f"{runner.num_done / (time.monotonic() - start):,.1f}"


def _say(text: str) -> None:
    _console.print(text, markup=False, highlight=False, soft_wrap=True)
