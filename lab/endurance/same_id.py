"""Sends the same prediction many times at once, under one id."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from lab.endurance.client import opened
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import marked

_ID: Final = "the-same"
_SLOW: Final = 200  # columns, so that the answer takes longer than sending all requests


def same_id(stage: Stage, amounts: Amounts) -> Result:
    """Half of the clients stream and half do not."""
    server, inputs = stage.server, marked(7, num_columns=_SLOW)
    before = stage.stats(server)["num_requests"]
    texts, wrong = asyncio.run(_all(server.url, inputs, amounts.same_id))
    generations = stage.stats(server)["num_requests"] - before
    return Result(
        checks=(
            Check("generations besides the one, or none", abs(generations - 1), 0),
            Check("texts besides the one, or none", abs(len(texts) - 1), 0),
            Check("requests that were answered wrongly", len(wrong), 0),
        ),
        about={"requests": amounts.same_id},
        losses=tuple(wrong[:5]),
    )


async def _all(url: str, inputs: dict[str, Any], count: int) -> tuple[set[str], list[str]]:
    """The different texts of streams, and what was wrong."""
    body = {"id": _ID, "input": inputs}
    async with opened(url) as client:

        async def put(number: int) -> tuple[str | None, str | None]:
            if number % 2 == 0:
                answer = await client.stream(_ID, inputs)
                return answer.text, None if answer.status == "succeeded" else f"{answer.status}: {answer.error}"
            async with client.session.put(f"/predictions/{_ID}", json=body) as response:
                text = await response.text()
                return None, None if response.status in (200, 202) else f"{response.status} {text[:200]}"

        found = await asyncio.gather(*(put(number) for number in range(count)))
    return {text for text, _ in found if text is not None}, [loss for _, loss in found if loss is not None]
