"""Asks thousands of mixed questions, and compares each answer with the one that was given alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from lab.endurance.client import ClientResult, ask_all, at_most, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import ADAPTERS, Stage
from lab.endurance.workload import adapter_questions, chats, mixed
from lab.processes import resident_bytes

_CLIENTS: Final = 16
_BATCH: Final = 200  # predictions between two looks at the memory
_WARM_UP: Final = 0.3  # share of the looks; caches fill for a while


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen of one server.

    Args:
        asked: number of predictions, besides those alone.
        memory: resident bytes, before each batch and at the end.
        wrong: answers that differ from those alone, in words.
        cut_short: answers that max_tokens cut short, alone as well.
    """

    asked: int
    memory: Sequence[int]
    wrong: Sequence[str]
    cut_short: int

    @property
    def growth(self) -> float:
        """The growth of the resident memory after the warm-up, as a share."""
        warm = self.memory[int(len(self.memory) * _WARM_UP) :]
        size = max(1, len(warm) // 5)  # of the first and the last part that are compared
        return median(warm[-size:]) / median(warm[:size]) - 1


@dataclass(frozen=True, slots=True)
class _Part:
    """Questions for one server.

    Args:
        name: its name in the result.
        server: the function that starts the server.
        questions: the questions of which random ones are asked.
        share: its share of the predictions and of the time; the last part also gets the time that the others leave.
    """

    name: str
    server: Callable[[], AbstractContextManager[CogServer]]
    questions: list[dict[str, Any]]
    share: float


def soak(stage: Stage, amounts: Amounts) -> Result:
    """Ask chats with seeds and schemas, adapters, and then queries, many at once; memory is read between batches."""
    end, seconds = time.monotonic() + amounts.minutes * 30, amounts.minutes * 30
    few = max(4, amounts.distinct // 4)
    parts = (
        []
        if amounts.is_quick
        else [
            _Part("chats", stage.chat_server, chats(few), share=0.15),
            _Part("adapters", stage.adapter_server, adapter_questions(ADAPTERS, few), share=0.15),
        ]
    )
    rest = 1 - sum(part.share for part in parts)
    parts.append(_Part("queries", lambda: nullcontext(stage.server), mixed(amounts.distinct, seed=1), share=rest))
    runs = dict[str, Run]()
    for part in parts:
        count = round(part.share * amounts.soak)
        with part.server() as server:
            time_left = end - time.monotonic() if part is parts[-1] else part.share * seconds
            runs[part.name] = _soak(server, part.questions, count, time_left)
    wrong = [loss for run in runs.values() for loss in run.wrong]
    missing = amounts.soak - sum(run.asked for run in runs.values())
    return Result(
        checks=(
            Check("predictions that were not asked for want of time", missing, 0, is_time=True),
            Check("answers that differ from those given alone", len(wrong), 0),
            *(
                Check(f"{name}: growth of resident memory after warm-up", 100 * run.growth, 2, "%", is_time=True)
                for name, run in runs.items()
            ),
        ),
        about={
            **{name: run.asked for name, run in runs.items()},
            "different questions": sum(len(part.questions) for part in parts),
            **{f"{name}: resident MB at the end": round(run.memory[-1] / 1e6) for name, run in runs.items()},
            "answers that max_tokens cut short, alone as well": sum(run.cut_short for run in runs.values()),
        },
        losses=tuple(wrong[:5]),
    )


def _soak(server: CogServer, questions: list[dict[str, Any]], count: int, seconds: float) -> Run:
    alone = asyncio.run(ask_all(server.url, questions))
    wrong = [f"{one} alone" for one in alone if not one.is_as_expected]
    rng, memory, asked = random.Random(2), [resident_bytes(server.process.pid)], 0
    end = time.monotonic() + seconds
    while asked < count and time.monotonic() < end:
        numbers = [rng.randrange(len(questions)) for _ in range(min(_BATCH, count - asked))]
        wrong += asyncio.run(_batch(server.url, questions, alone, numbers, asked))
        memory.append(resident_bytes(server.process.pid))
        asked += len(numbers)
    return Run(asked, memory, wrong, sum(one.status == "failed" and one.is_as_expected for one in alone))


async def _batch(
    url: str, questions: list[dict[str, Any]], alone: list[ClientResult], numbers: list[int], first: int
) -> list[str]:
    """Descriptions of the wrong answers of a batch."""

    async def one(place: int) -> str | None:
        question, expected = questions[numbers[place]], alone[numbers[place]]
        streams = place % 3 == 0
        answer = await (client.stream(f"soak-{first + place}", question) if streams else client.ask_patiently(question))
        # What is streamed before an error is not part of an answer that is not streamed.
        is_error = expected.status == "failed"
        same = answer.status == expected.status and (
            answer.error == expected.error if is_error else answer.text == expected.text
        )
        return None if same else f"{question}: {answer} instead of {expected}"

    async with opened(url) as client:
        return [loss for loss in await at_most(_CLIENTS, range(len(numbers)), one) if loss is not None]
