"""Closing an engine ends every request with an error, does not hang, and may be done twice."""

from __future__ import annotations

import asyncio

import pytest

from serving.errors import EngineDeadError
from tests.conformance.asking import PROMPTS, answer, ask, ask_long
from tests.conformance.kinds import MAX_NUM_SEQS, Kind


async def test_close_fails_all_requests_and_may_be_called_twice(kind: Kind) -> None:
    """Running, waiting and later requests."""
    engine = await asyncio.to_thread(kind.start)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(MAX_NUM_SEQS + 4)]
    readers = [asyncio.create_task(answer(engine, ask_long(kind.tokenizer, prompt))) for prompt in prompts]
    await asyncio.sleep(0.05)
    await asyncio.to_thread(engine.close)
    for result in await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 60):
        assert isinstance(result, EngineDeadError)
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineDeadError):
        await answer(engine, ask(kind.tokenizer))
    with pytest.raises(EngineDeadError):
        await engine.health()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
