"""Streaming, concurrency and cancellation of predictions, without a server.

These tests call predict as Cog does: `run_coroutine_threadsafe` on a loop in another thread, `result()`, iteration in
the caller's thread, `future.cancel()` from a third thread. tests/cog/test_server.py uses the real server.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from typing import Any

import pytest
from cog import CancelationException

from serving.cog_streaming import on_cancel, stream


@pytest.fixture
def loop() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop in its own thread, as Cog's worker has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def submit(loop: asyncio.AbstractEventLoop, chunks: Callable[[], AsyncGenerator[str]]) -> Future[Any]:
    """Start a prediction as Cog does."""

    async def predict() -> Generator[str]:
        return stream(chunks())

    return asyncio.run_coroutine_threadsafe(predict(), loop)


def test_chunks_arrive_before_the_answer_is_complete(loop):
    proceed = asyncio.Event()

    async def chunks():
        yield "first"
        await proceed.wait()
        yield "second"

    generator = submit(loop, chunks).result()
    assert next(generator) == "first"
    loop.call_soon_threadsafe(proceed.set)
    assert list(generator) == ["second"]


def test_predictions_run_at_the_same_time(loop):
    """Each prediction waits until all have begun, so predictions that run one after the other would never end."""
    all_begun = asyncio.Barrier(8)

    def chunks(number: int) -> Callable[[], AsyncGenerator[str]]:
        async def generate() -> AsyncGenerator[str]:
            await asyncio.wait_for(all_begun.wait(), 60)
            yield str(number)

        return generate

    futures = [submit(loop, chunks(number)) for number in range(8)]
    assert [list(future.result()) for future in futures] == [[str(number)] for number in range(8)]


def test_cancel_after_the_coroutine_returned_closes_the_chunks_then_ends_the_generator(loop):
    closed = []

    async def chunks():
        try:
            yield "first"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    future = submit(loop, chunks)
    generator = future.result()
    assert next(generator) == "first"
    threading.Timer(0.05, future.cancel).start()
    with pytest.raises(CancelationException):
        next(generator)
    assert closed == [True]


def test_cancel_before_the_first_chunk(loop):
    started = threading.Event()

    async def chunks():
        started.set()
        await asyncio.sleep(60)
        yield "never"

    future = submit(loop, chunks)
    generator = future.result()
    assert started.wait(60)
    future.cancel()
    with pytest.raises(CancelationException):
        next(generator)


def test_cancel_before_the_task_had_its_first_step(loop):
    """A task that is cancelled so early never runs; the generator must not wait for it forever."""
    began = []

    async def chunks():
        began.append(True)
        yield "never"

    async def predict() -> Generator[str]:
        generator = stream(chunks())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return generator

    with pytest.raises(CancelationException):
        list(asyncio.run_coroutine_threadsafe(predict(), loop).result())
    assert began == []


def test_cancel_before_the_hook_is_registered_is_not_lost(loop):
    closed = threading.Event()

    async def chunks():
        try:
            await asyncio.sleep(60)
            yield "never"
        finally:
            closed.set()

    future: Future[Any]
    bound = threading.Event()

    async def predict() -> Generator[str]:
        bound.wait(60)
        Future.cancel(future)  # Cog cancels, on its own thread, while we run
        generator = stream(chunks())
        await asyncio.sleep(0)
        return generator

    async def others_ended() -> bool:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return not others or not (await asyncio.wait(others, timeout=30))[1]

    future = asyncio.run_coroutine_threadsafe(predict(), loop)
    bound.set()
    assert asyncio.run_coroutine_threadsafe(others_ended(), loop).result(60)
    assert future.cancelled()


def test_dropping_the_generator_closes_the_chunks(loop):
    closed = threading.Event()

    async def chunks():
        try:
            yield "first"
            await asyncio.sleep(60)
        finally:
            closed.set()

    generator = submit(loop, chunks).result()
    next(generator)
    generator.close()
    assert closed.wait(60)


@pytest.mark.parametrize("text", ["no such column 'order.cancelled'", "CancelledError", "plain"])
def test_an_error_is_raised_by_the_generator_and_not_by_the_coroutine(loop, text):
    """Cog searches a coroutine's error for "cancelled" and would report that prediction as canceled."""

    async def chunks():
        yield "first"
        raise ValueError(text)

    generator = submit(loop, chunks).result()
    assert next(generator) == "first"
    with pytest.raises(ValueError, match=text):
        next(generator)


def test_an_error_before_the_first_chunk_is_raised_by_the_generator_too(loop):
    async def chunks():
        raise ValueError("order.cancelled is no column")
        yield "never"

    with pytest.raises(ValueError, match="is no column"):
        next(submit(loop, chunks).result())


def test_each_prediction_keeps_its_own_context(loop):
    """Cog routes metrics and logs by context variables that it sets around the coroutine."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("prediction")

    async def chunks():
        await asyncio.sleep(0.01)
        yield variable.get()

    async def wrapped(name: str) -> Generator[str]:  # as Cog's _ctx_wrapper
        token = variable.set(name)
        try:
            return stream(chunks())
        finally:
            variable.reset(token)

    futures = [asyncio.run_coroutine_threadsafe(wrapped(name), loop) for name in "abcdef"]
    assert [list(future.result()) for future in futures] == [[name] for name in "abcdef"]


def test_nothing_is_left_on_the_loop(loop):
    async def chunks():
        yield "all"

    for _ in range(20):
        assert list(submit(loop, chunks).result()) == ["all"]
    gc.collect()
    deadline = time.monotonic() + 60
    while asyncio.all_tasks(loop) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not asyncio.all_tasks(loop)


def test_the_hook_still_finds_the_future_that_cog_holds(loop):
    """Fails when asyncio no longer chains futures by a closure over `destination`: then cancel is lost."""
    heard = []

    async def predict() -> bool:
        return on_cancel(lambda: heard.append(True))

    future = asyncio.run_coroutine_threadsafe(predict(), loop)
    assert future.result() is True
    future.cancel()
    assert heard == [True]


async def test_without_that_future_only_cancel_does_not_work():
    """The task has no chained future, as if Cog submitted coroutines in another way."""
    assert on_cancel(lambda: None) is False

    async def chunks():
        yield "still"
        yield "streams"

    assert await asyncio.to_thread(list, stream(chunks())) == ["still", "streams"]
