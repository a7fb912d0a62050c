"""Cancels half of many predictions while they wait, while their prompt is computed and while they answer."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Final

from lab.endurance.client import Client, ClientResult, End, ask_all, opened
from lab.endurance.cog_process import CogServer
from lab.endurance.row import Amounts, Check, Result
from lab.endurance.stage import Stage
from lab.endurance.workload import has_foreign_mark, marked

_WAVE: Final = 32  # predictions at once
_RUNNING: Final = 8  # of them in the engine's batch; the others wait in its queue
_MANY_COLUMNS: Final = 80  # make a prompt of several steps
_QUIET: Final = (0.3, 1.0, 3.0)  # seconds without any request, in which blocks return; a slow CPU needs more
_FRESH: Final = 1_000_000  # from this number on, prompts are new, so that no cached prefix shortens their computation
_LOOKS: Final = 100  # at the counters, until blocks count as lost
# How predictions are ended. With many columns, the prompt is still computed a moment after its start.
_ENDS: Final = (
    End("start", "cancel"),
    End("start", "disconnect"),
    End("start", "cancel", 0.03),
    End("start", "disconnect", 0.03),
    End("output", "cancel"),
    End("output", "disconnect"),
)


def cancel_storm(stage: Stage, amounts: Amounts) -> Result:
    """Ask waves of predictions of which half are ended early; after each wave every block must be free."""
    answers: list[ClientResult] = []
    foreign = lost_blocks = remaining = ignored = 0
    with stage.own_server({"MAX_NUM_SEQS": str(_RUNNING)}, concurrency=2 * _WAVE) as server:
        for start in range(0, amounts.cancels, _WAVE):
            numbers = range(start, min(start + _WAVE, amounts.cancels))
            wave = asyncio.run(_wave(server.url, numbers))
            ignored += asyncio.run(_alone(stage, server, start))
            answers += wave
            foreign += sum(has_foreign_mark(one.text, number) for number, one in zip(numbers, wave, strict=True))
            missing, open_ones = _num_kept(stage, server)
            lost_blocks, remaining = lost_blocks + missing, remaining + open_ones
        some = range(0, len(answers), max(2, len(answers) // 100 * 2))  # of those that were kept
        alone = asyncio.run(ask_all(server.url, [marked(number) for number in some]))
        stats = stage.stats(server)
    changed = sum(one.text != answers[number].text for number, one in zip(some, alone, strict=True))
    kept, ended = answers[::2], answers[1::2]
    failed = [one for one in kept if one.status != "succeeded"]
    # Cog has a race: it may call a prediction failed that it cancelled.
    raced = [one for one in ended if one.status == "failed" and "CancelationException" in one.error]
    wrong = [one for one in ended if one.status not in ("canceled", "left", "succeeded") and one not in raced]
    return Result(
        checks=(
            Check("steps until every KV block is back", max(stats["steps_until_free"], default=float("nan")), 2),
            Check("KV blocks lost", lost_blocks, 0),
            Check("predictions that stay in the engine", remaining, 0),
            Check("ends that the engine does not hear of", ignored, 0),
            Check("predictions with text of another", foreign, 0),
            Check("kept predictions that did not succeed", len(failed), 0),
            Check("kept answers that differ from those given alone", changed, 0),
            Check("cancelled predictions that ended otherwise", len(wrong), 0),
        ),
        about={
            "predictions": len(answers),
            "aborted before their first token": stats["aborted"]["before a token"],
            "aborted after it": stats["aborted"]["after a token"],
            "returns of blocks whose steps were counted": len(stats["steps_until_free"]),
            "cancelled, and called failed by Cog": len(raced),
            "complete before their end": sum(one.status == "succeeded" for one in ended),
        },
        losses=tuple(f"{one.status}: {one.error}" for one in (*failed, *wrong)[:5]),
    )


async def _wave(url: str, numbers: range) -> list[ClientResult]:
    rng = random.Random(numbers.start)

    async def one(client: Client, number: int) -> ClientResult:
        end = None if number % 2 == 0 else _ENDS[number // 2 % len(_ENDS)]
        is_long = end is not None and end.delay > 0
        await asyncio.sleep(rng.random() * 0.1)
        return await client.stream(f"storm-{number}", marked(number, num_columns=_MANY_COLUMNS if is_long else 6), end)

    async with opened(url) as client:
        return list(await asyncio.gather(*(one(client, number) for number in numbers)))


async def _alone(stage: Stage, server: CogServer, wave: int) -> int:
    """End predictions with no other in flight, so that the steps until their blocks are back can be counted.

    Returns:
        The number of ways to end a prediction, by cancel and by disconnect, after which the engine went on with it.
    """
    before, ignored = await asyncio.to_thread(stage.stats, server), 0
    numbers = itertools.count(_FRESH + wave * len(_QUIET) * 2)
    async with opened(server.url) as client:
        for end in (_ENDS[2], _ENDS[3]):  # an answer may be complete before its end is received, a long prompt not
            aborted = False
            for quiet in _QUIET:
                name = f"storm-{wave}-{end.by}-{quiet}"
                await client.stream(name, marked(next(numbers), num_columns=_MANY_COLUMNS), end)
                await asyncio.sleep(quiet)
                last, before = before, await asyncio.to_thread(stage.stats, server)
                aborted = aborted or sum(before["aborted"].values()) > sum(last["aborted"].values())
                if len(before["steps_until_free"]) > len(last["steps_until_free"]):
                    break
            ignored += not aborted
    return ignored


def _num_kept(stage: Stage, server: CogServer) -> tuple[int, int]:
    """KV blocks that do not return, and predictions that do not leave."""
    for _ in range(_LOOKS):
        stats = stage.stats(server)
        missing = stats["num_blocks"] - stats["num_free_blocks"]
        if not missing + stats["num_running"] + stats["num_waiting"]:
            break
    return missing, stats["num_running"] + stats["num_waiting"]
