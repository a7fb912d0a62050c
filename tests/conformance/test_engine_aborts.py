"""A caller may abort at any time; its blocks are freed and other requests are not affected."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from serving.engine import Engine
from tests.conformance.asking import PROMPTS, answer, ask, ask_long, read_some, until_idle
from tests.conformance.kinds import MAX_NUM_SEQS, Kind

ENOUGH = 120  # steps that an engine may take while a busy machine lets the reader wait; an answer would take 200


async def test_closing_the_stream_in_the_middle_frees_the_request(engine: Engine, kind: Kind) -> None:
    """Long before the answer would have ended by itself, as the number of steps shows."""
    before = engine.stats()
    await read_some(engine, ask_long(kind.tokenizer))
    await until_idle(engine)
    after = engine.stats()
    assert after.num_free_blocks == before.num_free_blocks
    assert after.num_steps - before.num_steps < ENOUGH


async def test_closing_a_stream_that_never_began_does_nothing(engine: Engine, kind: Kind) -> None:
    stream = engine.generate(ask_long(kind.tokenizer))
    await stream.aclose()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)


async def test_closing_a_finished_stream_does_nothing(engine: Engine, kind: Kind) -> None:
    stream = engine.generate(ask(kind.tokenizer, max_tokens=2))
    async for _ in stream:
        pass
    await stream.aclose()


@pytest.mark.parametrize("moment", ["at once", "admitted", "answering"])
async def test_cancelling_the_task_that_reads_frees_the_request(engine: Engine, kind: Kind, moment: str) -> None:
    """Immediately, while the request is admitted, or in the middle of its answer."""
    began = asyncio.Event()

    async def read() -> None:
        async with aclosing(engine.generate(ask_long(kind.tokenizer))) as stream:
            async for _ in stream:
                began.set()

    task = asyncio.create_task(read())
    await (began.wait() if moment == "answering" else asyncio.sleep(0.001 if moment == "admitted" else 0))
    before = engine.stats()  # a fast machine has taken any number of steps by now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    assert engine.stats().num_steps - before.num_steps < ENOUGH


async def test_cancelling_waiting_requests_does_not_affect_running_ones(engine: Engine, kind: Kind) -> None:
    streams = [engine.generate(ask_long(kind.tokenizer, prompt)) for prompt in PROMPTS[:MAX_NUM_SEQS]]
    await asyncio.gather(*(anext(stream) for stream in streams))
    waiting = [asyncio.create_task(answer(engine, ask_long(kind.tokenizer))) for _ in range(4)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    for delta in await asyncio.gather(*(anext(stream) for stream in streams)):
        assert delta.token_ids or delta.finish_reason
    for stream in streams:
        await stream.aclose()


async def test_many_cancels_do_not_change_other_answers(engine: Engine, kind: Kind) -> None:
    """Half are cancelled while queued, in prefill or in decode; the others' answers are the same as without them."""
    rng = random.Random(4)
    alone = {prompt: (await answer(engine, ask(kind.tokenizer, prompt))).text for prompt in PROMPTS[:6]}
    goers = [asyncio.create_task(answer(engine, ask_long(kind.tokenizer, p))) for p in PROMPTS[6:18]]
    stayers = {p: asyncio.create_task(answer(engine, ask(kind.tokenizer, p))) for p in alone}
    for task in goers:
        await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
        task.cancel()
    same = [(await task).text == alone[prompt] for prompt, task in stayers.items()]
    assert sum(same) >= kind.same_share * len(same)
    await asyncio.wait(goers)
    await until_idle(engine)
