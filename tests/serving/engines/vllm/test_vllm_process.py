"""The real vLLM in float32 gives exactly the paged engine's texts; then its worker is killed.

Both tests share one engine, because its start takes as long as the tests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import aclosing, closing

import pytest

from serving.engine import Engine, create_engine
from serving.errors import EngineDeadError
from serving.text import Tokenizer
from tests.conformance.agreement import questions, reference, texts
from tests.conformance.asking import PROMPTS, answer, ask, ask_long
from tests.conformance.kinds import MAX_NUM_SEQS, MAX_QUEUE, limits
from tests.serving.engines.vllm.vllm_processes import vllm_process
from tests.small_model import BUILD, UNQUANTIZED

pytestmark = [pytest.mark.vllm]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    built = f"{BUILD} --unquantized {UNQUANTIZED}"
    assert (UNQUANTIZED / "task.json").is_file(), f"{UNQUANTIZED} is not built; {built} does it"
    settings = limits("vllm", UNQUANTIZED).model_copy(update={"dtype": "float32"})
    with closing(create_engine(settings)) as engine:
        yield engine


async def test_greedy_queries_in_float32_equal_the_paged_engine_s(engine: Engine) -> None:
    """bfloat16 has a tolerance (docs/engines.md); without its rounding nothing may differ."""
    asked = questions(UNQUANTIZED)
    assert len(asked) >= 50
    found = await texts(engine, asked)
    with closing(reference(UNQUANTIZED)) as paged:
        expected = await texts(paged, asked)
    assert found == expected
    assert len(set(expected)) > len(asked) / 2


async def test_a_dead_worker_fails_all_requests_and_the_health_check(engine: Engine) -> None:
    """This test is last. Some requests have text already, some are in vLLM's queue."""
    tokenizer = Tokenizer.from_dir(UNQUANTIZED)
    begun = asyncio.Semaphore(0)

    async def read(prompt: str) -> None:
        async with aclosing(engine.generate(ask_long(tokenizer, prompt))) as stream:
            async for _ in stream:
                begun.release()

    prompts = (PROMPTS * 2)[: MAX_NUM_SEQS + MAX_QUEUE]
    readers = [asyncio.create_task(read(prompt)) for prompt in prompts]
    for _ in range(MAX_NUM_SEQS):
        await begun.acquire()
    vllm_process(os.getpid(), "Worker").kill()
    async with asyncio.timeout(120):
        with pytest.raises(EngineDeadError):
            while True:  # tokens from before the kill may still arrive, and satisfy a check
                await engine.health(timeout=60)
        ends = await asyncio.gather(*readers, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, EngineDeadError)] == []
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 0)
    with pytest.raises(EngineDeadError, match="engine process ended"):
        await answer(engine, ask(tokenizer))
