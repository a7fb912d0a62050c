"""Sends schemas that are expensive to compile or to follow, while others ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from jsonschema import Draft202012Validator, validators

from lab.endurance.client import ClientResult, closed_loop, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import quantile
from lab.processes import resident_bytes

_CLIENTS: Final = 4  # others
_SLOWEST_SECONDS: Final = 10.0
_MOST_MB: Final = 512.0  # of the processes that compile
_PAUSE: Final = 0.5  # seconds between two hostile requests
_WATCH_PAUSE: Final = 0.1  # seconds between two looks at the memory
_Validator: Final = validators.extend(Draft202012Validator, {"pattern": lambda *_: None})


def hostile_grammars(stage: Stage, amounts: Amounts) -> Result:
    """Others ask for as long as the hostile requests take, and before as long without them."""
    with stage.chat_server() as server:
        return asyncio.run(_run(stage, server, amounts))


async def _run(stage: Stage, server: CogServer, amounts: Amounts) -> Result:
    questions = [{"prompt": f"Count from {number} to ten.", "max_tokens": 16} for number in range(20)]
    await closed_loop(server.url, questions, clients=1, seconds=0, at_least=4)  # warm up
    schemas = _schemas() * amounts.hostile_rounds
    seconds = (_PAUSE + 0.5) * len(schemas)
    before = await closed_loop(server.url, questions, clients=_CLIENTS, seconds=seconds if not amounts.is_quick else 1)
    resident = resident_bytes(server.process.pid)
    hostile = asyncio.create_task(_hostile(server, schemas, 0.1 if amounts.is_quick else _PAUSE))
    others: list[ClientResult] = []
    while not hostile.done():
        others += await closed_loop(server.url, questions, clients=_CLIENTS, seconds=1)
    answers, most = await hostile
    asked = zip(schemas, answers, strict=True)
    nameless = [f"{name}: {one}" for (name, schema), one in asked if not _is_bounded(schema, one)]
    usual, loaded = (quantile([one.seconds for one in some], 0.95) for some in (before, others))
    return Result(
        checks=(
            Check("neither followed nor refused by name", len(nameless), 0),
            Check("others without an answer", sum(one.status != "succeeded" for one in others), 0),
            Check("slowest", max(one.seconds for one in answers), _SLOWEST_SECONDS, "s", is_time=True),
            Check("more resident memory", max(0.0, (most - resident) / 1e6), _MOST_MB, "MB"),
            Check("p95 of others, against without", loaded / usual, 1.5, "×", is_time=True),
        ),
        about={
            "hostile requests": len(answers),
            "refused": sum(one.status == "failed" for one in answers),
            "others": len(others),
            "p95 of others without, s": round(usual, 3),
            "p95 of others with, s": round(loaded, 3),
        },
        losses=tuple(loss[:600] for loss in nameless[:5]),
    )


async def _hostile(server: CogServer, schemas: list[tuple[str, Any]], pause: float) -> tuple[list[ClientResult], int]:
    """The answers, and the most memory that was seen twice in a row.

    Between its start and its own program, a new process seems to have all the memory of the one that starts it.
    """
    answers, seen = [], list[int]()

    async def watch() -> None:
        while True:  # what a compiler takes, it may give back before there is an answer
            seen.append(await asyncio.to_thread(resident_bytes, server.process.pid))
            await asyncio.sleep(_WATCH_PAUSE)

    async with opened(server.url) as client:
        watching = asyncio.create_task(watch())
        for _, schema in schemas:
            answers.append(await client.ask_patiently({"prompt": "Answer.", "json_schema": schema, "max_tokens": 24}))
            await asyncio.sleep(pause)
        watching.cancel()
    return answers, max(map(min, pairwise(seen)))


def _is_bounded(schema: Any, answer: ClientResult) -> bool:
    """Whether the schema was followed as far as its tokens went, or refused by its name."""
    if answer.status == "succeeded":
        return _follows(schema, answer.text)
    if "max_tokens" in answer.error:
        return True
    return answer.status in ("failed", "invalid") and "schema" in answer.error


def _follows(schema: Any, text: str) -> bool:
    """Whether a text follows the schema; patterns are not tried, because they are made to take for ever."""
    try:
        return bool(_Validator(schema).is_valid(json.loads(text)))
    except (ValueError, RecursionError):
        return False


def _schemas() -> list[tuple[str, Any]]:
    text: Callable[[str], Any] = lambda pattern: {"type": "string", "pattern": pattern}  # noqa: E731
    return [
        ("a large multiple", {"type": "integer", "multipleOf": 99_999_989}),
        ("patterns of all", {"allOf": [text(f"(a|b)*a(a|b){{{size}}}") for size in range(80)]}),
        ("a chain of references", _chain(3000)),
        ("10,000 alternatives", {"enum": [f"choice {number}" for number in range(10_000)]}),
        ("alternatives in alternatives", _doubling(12)),
        ("endless recursion", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        (
            "a tree without an end",
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 2}}},
        ),
        ("100 levels", json.loads('{"items": ' * 90 + "{}" + "}" * 90)),
        ("500 optional properties", {"properties": {f"p{number}": {"enum": ["a", "b"]} for number in range(500)}}),
        ("counts in counts", text("((((a{1,1000}){1,1000}){1,1000}){1,1000})")),
        ("a regex bomb", text("^(a+)+$")),
        ("states that double", text("(.*a.{60}b.*){30}")),
        ("a long pattern", text("a" * 70_000)),
        ("a long schema", {"enum": ["x" * 100] * 3000}),
    ]


def _chain(count: int) -> Any:
    links = {f"d{place}": {"properties": {"a": {"$ref": f"#/$defs/d{place + 1}"}}} for place in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "string"}}}


def _doubling(depth: int) -> Any:
    if depth == 0:
        return {"type": "string", "maxLength": 3}
    inner = _doubling(depth - 1)
    return {"anyOf": [{"properties": {"a": inner}}, {"properties": {"b": inner}}]}
