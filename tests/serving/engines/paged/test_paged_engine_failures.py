"""Aborted requests free their blocks; a failing engine ends every request with an error."""

import asyncio
import random
import threading
import time

import pytest

from serving.engines.paged.sampler import RunnerOutput
from serving.errors import EngineDeadError, GrammarError
from tests.serving.engines.paged.paged_engines import Parts, ask, collect, expected_tokens, make_engine, run
from tests.serving.engines.paged.paged_fakes import make_prompt


async def all_back(parts: Parts, within_steps: int = 2) -> None:
    """Wait until every block is free, for at most this number of steps."""
    start = parts.core.num_steps
    while parts.blocks.num_free_blocks < parts.blocks.num_blocks or parts.core.num_in_flight:
        assert parts.core.num_steps <= start + within_steps
        await asyncio.sleep(0.001)


async def test_closing_the_iterator_frees_within_two_steps():
    with make_engine() as parts:
        stream = parts.engine.generate(ask("a", make_prompt(50), max_tokens=300))
        for _ in range(3):
            await anext(stream)
        assert parts.blocks.num_free_blocks < parts.blocks.num_blocks
        await stream.aclose()
        await all_back(parts)


async def test_cancelling_the_task_that_reads_frees_the_request():
    with make_engine() as parts:
        task = asyncio.create_task(collect(parts.engine, ask("a", max_tokens=300)))
        while not parts.engine.stats().num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await all_back(parts)


async def test_many_cancels_free_everything_and_do_not_change_other_answers():
    """1,000 requests, half cancelled while queued, in prefill or in decode."""
    rng = random.Random(1)
    with make_engine(max_num_seqs=16, max_queue=1000, num_blocks=150, max_num_batched_tokens=128) as parts:

        async def one(i: int) -> None:
            prompt = make_prompt(rng.randint(1, 60), salt=i % 50)
            length = rng.randint(1, 6)
            reading = asyncio.create_task(collect(parts.engine, ask(str(i), prompt, max_tokens=length)))
            if i % 2:
                await asyncio.sleep(rng.random() * 3)
                reading.cancel()
            try:
                assert (await reading).token_ids == expected_tokens(prompt, length)
            except asyncio.CancelledError:
                assert i % 2

        await asyncio.gather(*(one(i) for i in range(1000)))
        await all_back(parts)


async def test_a_failing_model_fails_all_current_and_later_requests():
    with make_engine(max_num_seqs=2) as parts:
        parts.runner.gate.clear()
        tasks = [asyncio.create_task(collect(parts.engine, ask(str(i)))) for i in range(6)]
        await asyncio.sleep(0.05)
        parts.runner.error = RuntimeError("out of memory")
        parts.runner.gate.set()
        started = time.monotonic()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, EngineDeadError) and "out of memory" in str(r) for r in results)
        with pytest.raises(EngineDeadError):
            await parts.engine.health()
        with pytest.raises(EngineDeadError):
            await collect(parts.engine, ask("late"))
        assert time.monotonic() - started < 1
        await all_back(parts)


async def test_a_hung_step_fails_health_within_the_deadline_and_then_every_request():
    with make_engine(blocked_limit=0.4) as parts:
        parts.runner.gate.clear()
        task = asyncio.create_task(collect(parts.engine, ask("a")))
        assert await asyncio.to_thread(parts.runner.entered.wait, 5)
        with pytest.raises(EngineDeadError, match=r"no token within 0\.1 s"):
            await parts.engine.health(timeout=0.1)
        with pytest.raises(EngineDeadError, match="hangs"):
            await asyncio.wait_for(task, 30)
        with pytest.raises(EngineDeadError, match="hangs"):
            await parts.engine.health()
        parts.runner.gate.set()  # the step ends later: no further effect
        await all_back(parts)


async def test_health_generates_a_token_also_under_full_load():
    with make_engine(max_num_seqs=1, max_queue=1, max_model_len=400) as parts:
        await parts.engine.health()
        tasks = [asyncio.create_task(collect(parts.engine, ask(str(i), max_tokens=300))) for i in range(2)]
        await asyncio.sleep(0.02)
        steps = parts.core.num_steps
        await parts.engine.health()
        assert parts.core.num_steps - steps < 50  # long before the two requests end
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await all_back(parts)


async def test_close_ends_all_requests_and_may_be_called_twice():
    before = set(threading.enumerate())  # engines of other tests may still exist
    parts = make_engine()
    task = asyncio.create_task(collect(parts.engine, ask("a", max_tokens=300)))
    while not parts.engine.stats().num_running:
        await asyncio.sleep(0.001)
    parts.engine.close()
    parts.engine.close()
    with pytest.raises(EngineDeadError, match="closed"):
        await task
    with pytest.raises(EngineDeadError, match="closed"):
        await parts.engine.health()
    assert "paged-engine" not in {thread.name for thread in set(threading.enumerate()) - before}
    await all_back(parts)


async def test_an_error_of_one_request_does_not_affect_others():
    with make_engine() as parts:
        execute = parts.runner.inner.execute

        def failing(output):
            result = execute(output)
            failures = {i.request.request_id for i in output.scheduled} & {"bad"}
            return RunnerOutput(result.sampled_token_ids, {name: GrammarError("dead end") for name in failures})

        parts.runner.inner.execute = failing
        bad, good = await asyncio.gather(
            collect(parts.engine, ask("bad")), collect(parts.engine, ask("good")), return_exceptions=True
        )
        assert isinstance(bad, GrammarError)
        assert good.token_ids == expected_tokens((5, 6, 7))
        await all_back(parts)


async def test_a_request_whose_event_loop_is_closed_is_aborted():
    with make_engine() as parts:
        loop = asyncio.new_event_loop()
        stream = parts.engine.generate(ask("a", max_tokens=300))
        await asyncio.to_thread(lambda: loop.run_until_complete(anext(stream)))
        loop.close()
        await all_back(parts, within_steps=300)
        assert parts.core.num_steps < 290
        await stream.aclose()


def test_an_idle_engine_sleeps():
    with make_engine() as parts:
        run(parts.engine, ask("a"))
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.1
        assert parts.core.num_steps == 20
