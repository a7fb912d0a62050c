"""Fills a gateway's cache of answers from a file of inputs: the command line of scripts/precompute."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

app = typer.Typer(add_completion=False)
_console = Console(stderr=True)
_TIMEOUT = httpx.Timeout(10, read=90, pool=None)  # the gateway holds an answer back for up to 60 seconds
_WAIT_SECONDS: Final = 60  # the longest time for which a gateway holds an answer back
_POLL_SECONDS: Final = 1.0
_MAX_REFUSALS: Final = 10  # answers 503 in a row, while no Cog server is ready, before a line fails
_NOT_KEPT: Final = (
    "answered, but not kept: only greedy answers are; set temperature to 0 (a default in task.json is not enough)"
)


@app.command()
def precompute(
    file: Annotated[typer.FileBinaryRead, typer.Argument(metavar="FILE", help="inputs as JSON Lines; - is stdin")],
    server: Annotated[str, typer.Option(help="address of the gateway")] = "http://127.0.0.1:8080",
    key: Annotated[str | None, typer.Option(envvar="GATEWAY_API_KEY", help="API key, if it asks for one")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=100, help="predictions at the same time")] = 8,
    refresh: Annotated[bool, typer.Option("--refresh", help="have every answer written again")] = False,
) -> None:
    """Fill the gateway's cache with the answers to a file of inputs.

    Each line of FILE is a JSON object of inputs, or an object that has them
    as "input". The gateway must run with GATEWAY_CACHE_MB. What the cache already
    has costs no time, so the command can be stopped and run again.

    Exit codes: 0 all are cached, 1 a line failed, 2 file or gateway unusable.
    """
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


async def _send(lines: list[Line], client: httpx.AsyncClient, concurrency: int, refresh: bool) -> int:
    """Send all lines, and return how many of them failed.

    Raises:
        GatewayUnusableError: not all were sent.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    bar = Progress(*columns, console=_console, disable=not _console.is_terminal)
    task = bar.add_task("", total=len(lines))

    def on_line(line: Line) -> None:
        bar.update(task, completed=counts.total(), description=f"{_rate(counts, start)} a second")
        if line.problem is not None:
            _say(f"line {line.number}: {line.problem}")

    async with client:
        gateway = GatewayClient(client, refresh=refresh)
        await gateway.connect()
        counts, start = Counter[str](), time.monotonic()
        try:
            with bar:
                await send_lines(lines, gateway, concurrency, counts, on_line)
        finally:  # also after Ctrl-C
            _say(_summary(counts, len(lines), start))
    return counts["failed"]


def _summary(counts: Counter[str], num_lines: int, start: float) -> str:
    ended = f"{counts['new']:,} new, {counts['cached']:,} already cached, {counts['failed']:,} failed"
    rest = num_lines - counts.total()
    unsent = f", {rest:,} not finished; run it again to continue" if rest else ""
    return f"{num_lines:,} lines: {ended}{unsent} ({_rate(counts, start)} a second)"


def _rate(counts: Counter[str], start: float) -> str:
    return f"{counts.total() / (time.monotonic() - start):,.1f}"


def _say(text: str) -> None:
    _console.print(text, markup=False, highlight=False, soft_wrap=True)


class LineError(Exception):
    """The gateway does not answer these inputs, or may not keep the answer."""


class GatewayUnusableError(Exception):
    """The gateway cannot be reached, refuses the key, or has no cache."""


class GatewayClient:
    """A client of one gateway. `client` has its address and the key. `refresh` makes the model answer again."""

    def __init__(self, client: httpx.AsyncClient, *, refresh: bool = False) -> None:
        self._client = client
        self._headers = {"Prefer": f"wait={_WAIT_SECONDS}"} | ({"Cache-Control": "no-cache"} if refresh else {})
        self._path = ""

    async def connect(self) -> None:
        """Check that the gateway has a cache, and ask for the name of its model.

        Raises:
            GatewayUnusableError: the gateway cannot be used.
        """
        response = await self._send("GET", "/ready")
        ready = _content(response)
        if "cache" not in ready:  # it is there also while no Cog server is ready
            raise GatewayUnusableError(f"the gateway at {self._client.base_url}: {_reason(response)}")
        if not ready["cache"]:
            text = "start it with GATEWAY_CACHE_MB, for example GATEWAY_CACHE_MB=256 scripts/serve"
            raise GatewayUnusableError(f"the gateway at {self._client.base_url} has no cache of answers; {text}")
        response = await self._send("GET", "/v1/models")
        if response.status_code != httpx.codes.OK:
            raise GatewayUnusableError(f"the gateway at {self._client.base_url}: {_reason(response)}")
        self._path = f"/v1/models/{response.json()['data'][0]['root']}/predictions"

    async def predict(self, inputs: Mapping[str, Any]) -> bool:
        """Make one prediction and wait for its answer; whether the cache had it already.

        Raises:
            LineError: the prediction is refused or fails, or its answer is not kept.
            GatewayUnusableError: no prediction can be made.
        """
        prediction = await self._create(inputs)
        while prediction["status"] in ("starting", "processing"):
            await asyncio.sleep(_POLL_SECONDS)
            prediction = _content(await self._send("GET", f"/v1/predictions/{prediction['id']}"))
            if "status" not in prediction:
                raise LineError("the prediction was deleted while it ran")
        if prediction["status"] != "succeeded":
            raise LineError(str(prediction.get("error") or prediction["status"]))
        if "cached" not in prediction["metrics"]:
            raise LineError(_NOT_KEPT)
        return bool(prediction["metrics"]["cached"])

    async def _create(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        refusals = 0
        while True:
            response = await self._send("POST", self._path, json={"input": inputs}, headers=self._headers)
            match response.status_code:
                case httpx.codes.CREATED:
                    return _content(response)
                case httpx.codes.TOO_MANY_REQUESTS:
                    pass
                case httpx.codes.SERVICE_UNAVAILABLE if refusals < _MAX_REFUSALS:
                    refusals += 1
                case httpx.codes.UNAUTHORIZED:
                    raise GatewayUnusableError(_reason(response))
                case _:
                    raise LineError(_reason(response))
            await asyncio.sleep(float(response.headers.get("retry-after", 1)))

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return await self._client.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            trouble = f"{type(error).__name__} {error}".rstrip()
            text = f"the gateway at {self._client.base_url} cannot be reached: {trouble}"
            raise GatewayUnusableError(text) from error


def _content(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise GatewayUnusableError(f"{response.url} does not answer as a gateway does")
    return content


def _reason(response: httpx.Response) -> str:
    """The text of an error, in the shape of either API."""
    content = _content(response)
    error = content.get("error")
    text = error.get("message") if isinstance(error, dict) else content.get("detail")
    return " ".join(str(text or f"answered {response.status_code}").split())


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file.

    Args:
        number: the line's number, from 1.
        inputs: the inputs of its prediction by name.
        problem: why it cannot be read, or its prediction failed, for people; None where nothing is wrong.
    """

    number: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


async def send_lines(
    lines: list[Line], gateway: GatewayClient, concurrency: int, counts: Counter[str], on_line: Callable[[Line], None]
) -> None:
    """Send all lines, `concurrency` at once.

    Args:
        counts: counts what became of the lines: new, cached or failed.
        on_line: is called after each line, with its problem if it failed.

    Raises:
        GatewayUnusableError: the rest was not sent.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            outcome = "failed"
            if line.problem is None:
                try:
                    outcome = "cached" if await gateway.predict(line.inputs) else "new"
                except LineError as error:
                    line = replace(line, problem=str(error))
            counts[outcome] += 1
            on_line(line)

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()


def read_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """The inputs of each line that is not blank: an object of inputs, or an object that has them as `input`."""
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            continue
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:  # also text that is not UTF-8
            yield Line(number, problem=f"is not JSON: {error}")
            continue
        if isinstance(content, dict):
            inner = content.get("input")
            yield Line(number, inner if isinstance(inner, dict) else content)
        else:
            kind = "a list" if isinstance(content, list) else "no object"
            yield Line(number, problem=f'is {kind}; give an object of inputs such as {{"text": "…"}} on each line')
