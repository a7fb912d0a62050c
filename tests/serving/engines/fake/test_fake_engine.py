"""The fake engine's own features: scripted answers and failures on demand. tests/conformance tests all the rest."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serving.engines.fake.engine import FakeEngine
from serving.errors import EngineDeadError
from serving.types import FinishReason
from tests import tiny_tokenizers
from tests.conformance.asking import answer, ask, ask_long

TOKENIZER = tiny_tokenizers.byte_level()
QUERY = '{"calculations": [{"op": "COUNT"}], "limit": 10}'
GRAMMAR = r"""
start: "{\"calculations\": [" calculation ("," " " calculation)* "]" (", \"limit\": " /[1-9][0-9]{0,2}/)? "}"
calculation: "{\"op\": \"" ("COUNT" | "MAX\", \"column\": \"" /[a-z ]{0,30}/) "\"}"
"""


@contextmanager
def fake(**options: object) -> Iterator[FakeEngine]:
    engine = FakeEngine(TOKENIZER, **options)
    try:
        yield engine
    finally:
        engine.close()


@pytest.mark.parametrize("grammar", [None, GRAMMAR])
async def test_a_scripted_answer_is_complete(grammar: str | None) -> None:
    with fake(answer=lambda prompt: QUERY if "count" in prompt else "?") as engine:
        whole = await answer(engine, ask(TOKENIZER, "count errors", grammar=grammar, max_tokens=100))
    assert (whole.text, whole.finish_reason) == (QUERY, FinishReason.STOP)
    assert len(whole.deltas) > 5


async def test_without_a_script_it_echoes() -> None:
    with fake() as engine:
        assert (await answer(engine, ask(TOKENIZER, "naïve 🙂", max_tokens=100))).text == "naïve 🙂"


@pytest.mark.parametrize("script", ["", "nothing that fits", '{"calculations": [{"op": "MAX", "column": "no end'])
async def test_the_grammar_completes_a_script_that_does_not_fit(script: str) -> None:
    """So a Predictor can use a fake engine that does not know the task."""
    with fake(answer=lambda prompt: script) as engine:
        whole = await answer(engine, ask(TOKENIZER, grammar=GRAMMAR, max_tokens=100))
    assert whole.finish_reason is FinishReason.STOP
    assert json.loads(whole.text)["calculations"]
    assert not script.startswith("{") or "no end" in whole.text


async def test_tokens_have_the_configured_rate() -> None:
    with fake(step_seconds=0.02) as engine:
        start = time.monotonic()
        whole = await answer(engine, ask(TOKENIZER, "x" * 50, max_tokens=10))
    assert time.monotonic() - start >= 0.18
    assert whole.metrics.time_to_first_token < 0.1 < whole.metrics.total_time


async def test_no_more_requests_run_at_once_than_configured() -> None:
    with fake(max_num_seqs=2, step_seconds=0.005) as engine:
        tasks = [asyncio.create_task(answer(engine, ask(TOKENIZER, f"{i} some prompt"))) for i in range(6)]
        seen = []
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.002)
            seen.append(engine.stats())
    assert max(stats.num_running for stats in seen) == 2
    assert max(stats.num_waiting for stats in seen) >= 3
    assert all(stats.num_free_blocks == stats.num_blocks - stats.num_running for stats in seen)


async def test_a_known_adapter_is_accepted() -> None:
    with fake(adapters=("mine",)) as engine:
        assert (await answer(engine, ask(TOKENIZER, "x", adapter="mine"))).text == "x"


async def test_a_killed_engine_fails_all_requests_and_health() -> None:
    with fake(max_num_seqs=1, step_seconds=0.01) as engine:
        readers = [asyncio.create_task(answer(engine, ask_long(TOKENIZER))) for _ in range(3)]
        await asyncio.sleep(0.05)
        engine.kill()
        for result in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(result, EngineDeadError) and "killed" in str(result)
        with pytest.raises(EngineDeadError, match="killed"):
            await engine.health()
        with pytest.raises(EngineDeadError, match="killed"):
            await answer(engine, ask(TOKENIZER))
        assert engine.stats().num_free_blocks == engine.stats().num_blocks


async def test_a_hung_engine_fails_health_within_the_deadline() -> None:
    with fake() as engine:
        await engine.health()
        engine.hang()
        start = time.monotonic()
        with pytest.raises(EngineDeadError, match=r"no token within 0\.1 s"):
            await engine.health(timeout=0.1)
        assert time.monotonic() - start < 1


def test_a_closed_event_loop_does_not_stop_other_requests() -> None:
    """Its stream was never closed, as when a program stops its loop by force."""
    with fake(step_seconds=0.001) as engine:
        loop = asyncio.new_event_loop()
        stream = engine.generate(ask_long(TOKENIZER))
        loop.run_until_complete(anext(stream))
        loop.close()
        assert asyncio.run(answer(engine, ask(TOKENIZER, "still here"))).text == "still here"
