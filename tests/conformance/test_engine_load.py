"""Many requests at once: each gets its own answer, and requests over the limit are refused at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from serving.engine import Engine
from serving.errors import ContextLengthError, EngineBusyError
from serving.types import GenerationRequest
from tests.conformance.asking import PROMPTS, answer, answers, ask, ask_long, until_idle
from tests.conformance.kinds import MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_QUEUE, Kind


async def test_32_requests_at_once_get_the_same_answers_as_alone(engine: Engine, kind: Kind) -> None:
    prompts = [f"{number} {PROMPTS[number % len(PROMPTS)]}" for number in range(MAX_NUM_SEQS + MAX_QUEUE)]
    assert len(prompts) == 32
    batched = await answers(engine, [ask(kind.tokenizer, prompt, max_tokens=12) for prompt in prompts])
    alone = [await answer(engine, ask(kind.tokenizer, prompt, max_tokens=12)) for prompt in prompts]
    same = sum(a.text == b.text for a, b in zip(batched, alone, strict=True))
    assert same >= kind.same_share * len(prompts)
    assert len({whole.text for whole in alone}) > 8  # otherwise a mix-up could not be seen


async def test_over_the_queue_is_refused_at_once_while_others_continue(engine: Engine, kind: Kind) -> None:
    streams = [engine.generate(ask_long(kind.tokenizer, prompt)) for prompt in PROMPTS[:MAX_NUM_SEQS]]
    await asyncio.gather(*(anext(stream) for stream in streams))
    burst, refused = [], []
    async with asyncio.timeout(60):
        while not refused:  # on busy cores, answers may end before the queue is full; then there are more
            burst += [asyncio.create_task(_first_item(engine, ask_long(kind.tokenizer))) for _ in range(MAX_QUEUE + 16)]
            await asyncio.sleep(0.02)
            refused = [task for task in burst if task.done() and task.exception() is not None]
    assert len(refused) <= len(burst) - MAX_QUEUE
    for task in refused:
        assert isinstance(task.exception(), EngineBusyError)
        assert str(MAX_QUEUE) in str(task.exception()) or str(MAX_QUEUE + MAX_NUM_SEQS) in str(task.exception())
    too_long = GenerationRequest("too-long", tuple(kind.tokenizer.encode("x " * MAX_MODEL_LEN)))
    with pytest.raises(ContextLengthError):  # also when the queue is full
        await answer(engine, too_long)
    await engine.health(timeout=60)  # a full queue is not a failure
    await asyncio.gather(*(anext(stream) for stream in streams))
    for task in burst:
        task.cancel()
    await asyncio.wait(burst)
    for stream in streams:
        await stream.aclose()
    await until_idle(engine)


async def _first_item(engine: Engine, request: GenerationRequest) -> None:
    stream = engine.generate(request)
    try:
        await anext(stream)
    finally:
        await stream.aclose()


def test_two_event_loops_in_two_threads_share_an_engine(engine: Engine, kind: Kind) -> None:
    prompts = PROMPTS[:6]
    results: dict[int, list[str]] = {}

    async def ask_all() -> list[str]:
        requests = [ask(kind.tokenizer, prompt, max_tokens=12) for prompt in prompts]
        return [whole.text for whole in await answers(engine, requests)]

    def work(number: int) -> None:
        results[number] = asyncio.run(ask_all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(results) == 2 and all(len(texts) == len(prompts) for texts in results.values())
    same = sum(a == b for a, b in zip(results[0], results[1], strict=True))
    assert same >= kind.same_share * len(prompts)


async def test_health_generates_a_token_within_the_deadline(engine: Engine) -> None:
    steps = engine.stats().num_steps
    await engine.health(timeout=60)
    assert engine.stats().num_steps > steps
