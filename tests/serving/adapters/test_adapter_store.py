"""Adapters in memory: loaded once, dropped when unused, never while in use or pinned."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from serving.adapters.adapter_store import AdapterStore
from serving.adapters.combination import Combination, Method
from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, EngineBusyError, EngineDeadError, WeightsError
from serving.fetching.remote_source import HubSource
from serving.weights.adapter_files import Loaded
from tests.serving.kernels.lora_inputs import random_adapter

DIGEST = "sha256:" + "0" * 64
SIZE = random_adapter((1,)).nbytes


class Folders:
    """Loads adapters that all have one size; a test can hold loads up, break them or change their content."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.digests: dict[str, str] = {}
        self.broken: set[str] = set()
        self.error: Exception = WeightsError("it is broken")

    def load(self, entry: AdapterEntry) -> Loaded:
        self.loads.append(entry.name)
        assert self.gate.wait(10)
        if entry.name in self.broken:
            raise self.error
        return Loaded(random_adapter((1,)), self.digests.get(entry.name, entry.name))


@pytest.fixture
def folders():
    return Folders()


@pytest.fixture
def make(folders):
    stores = []

    def make(room=2, load_seconds=10.0, pinned=(), digest=None):
        entries = {name: AdapterEntry(name, Path(name), digest, pinned=name in pinned) for name in "abcd"}
        stores.append(AdapterStore(entries, folders.load, max_bytes=room * SIZE, load_seconds=load_seconds))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


async def use(store, name):
    async with store.lease(name) as lora:
        return lora


def remote(name):
    return AdapterEntry(name, HubSource("org/name", "main"), DIGEST)


async def test_one_load_serves_all_who_wait_and_those_who_come_later(make, folders):
    store = make()
    folders.gate.clear()
    waiting = [asyncio.create_task(use(store, "a")) for _ in range(3)]
    await asyncio.sleep(0.05)
    waiting[0].cancel()  # the others still get it
    folders.gate.set()
    second, third = await asyncio.gather(*waiting[1:])
    assert second is third is await use(store, "a")
    assert folders.loads == ["a"]
    assert await use(store, None) is None


async def test_the_least_recently_used_is_dropped(make, folders):
    store = make(room=2)
    for name in "abac":
        await use(store, name)
    assert list(store.in_memory) == ["a", "c"]
    assert sum(store.in_memory.values()) == 2 * SIZE
    await use(store, "b")
    assert folders.loads == ["a", "b", "c", "b"]


async def test_what_is_in_use_or_pinned_is_never_dropped(make):
    store = make(room=3, pinned="d")
    store.load_pinned()
    async with AsyncExitStack() as stack:
        for name in "ab":
            await stack.enter_async_context(store.lease(name))
        with pytest.raises(EngineBusyError, match=r"adapter 'c' needs .* leave 0 of .*ADAPTER_MEMORY_MB"):
            await use(store, "c")
        assert set(store.in_memory) == {"a", "b", "d"}
    await use(store, "c")
    assert set(store.in_memory) == {"b", "c", "d"}


def test_pinned_adapters_must_fit_together(make):
    with pytest.raises(AdapterError, match="pinned adapters leave 0 of"):
        make(room=1, pinned="ab").load_pinned()


async def test_a_load_that_takes_too_long_fails_and_is_there_later(make, folders):
    store = make(load_seconds=0.05)
    folders.gate.clear()
    with pytest.raises(AdapterError, match=r"'a' was not loaded within 0\.05 s; try again later"):
        await use(store, "a")
    folders.gate.set()
    async with asyncio.timeout(10):
        while not store.in_memory:
            await asyncio.sleep(0.01)
    await use(store, "a")
    assert folders.loads == ["a"]


async def test_a_failed_load_is_tried_again(make, folders):
    store = make()
    folders.broken.add("a")
    with pytest.raises(WeightsError, match="it is broken"):
        await use(store, "a")
    folders.broken.clear()
    assert await use(store, "a") is not None


async def test_an_adapter_that_has_changed_on_disk_is_refused(make, folders):
    """Keys and values of the old one may be in the prefix cache."""
    store = make(room=1)
    await use(store, "a")
    await use(store, "b")
    folders.digests["a"] = "other"
    with pytest.raises(AdapterError, match="has the digest other, not a: its files have changed"):
        await use(store, "a")
    with pytest.raises(AdapterError, match="has the digest c, not listed"):
        await use(make(digest="listed"), "c")


async def test_one_that_pinned_adapters_leave_no_room_for_need_not_be_asked_for_again(make):
    with pytest.raises(AdapterError, match="pinned adapters leave 0 of"):
        store = make(room=1, pinned=("a",))
        store.load_pinned()
        await use(store, "b")


async def test_who_waits_for_a_load_is_told_at_once_that_the_store_was_closed(make, folders):
    store = make()
    folders.gate.clear()
    waiting = asyncio.create_task(use(store, "a"))
    while not folders.loads:
        await asyncio.sleep(0.01)
    store.close()
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(EngineDeadError):
        await use(store, "b")
    folders.gate.set()


async def test_who_waits_for_a_load_hears_soon_that_the_engine_died(make, folders):
    store = make(load_seconds=60.0)
    folders.gate.clear()

    def check_alive() -> None:
        raise EngineDeadError("it failed")

    async def wait() -> None:
        async with store.lease("a", check_alive):
            raise AssertionError("it was loaded")

    with pytest.raises(EngineDeadError, match="it failed"):
        await asyncio.wait_for(wait(), 5)
    folders.gate.set()


async def test_slow_sources_hold_up_no_adapter_of_a_folder(folders):
    folders.gate.clear()
    slow = [f"slow{i}" for i in range(20)]
    entries = {name: remote(name) for name in slow} | {"near": AdapterEntry("near", Path("near"))}

    def load(entry: AdapterEntry) -> Loaded:
        return Loaded(random_adapter((1,)), "near") if isinstance(entry.source, Path) else folders.load(entry)

    store = AdapterStore(entries, load, max_bytes=99 * SIZE)
    waiting = [asyncio.create_task(use(store, name)) for name in slow]
    assert await asyncio.wait_for(use(store, "near"), 5) is not None
    for task in waiting:
        task.cancel()
    folders.gate.set()
    store.close()


async def test_adapters_whose_loads_wait_hold_up_no_other(make, folders):
    store = make(room=3)
    folders.gate.clear()
    waiting = [asyncio.create_task(use(store, name)) for name in "abc"]

    async def all_started() -> None:
        while len(folders.loads) < 3:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(all_started(), 5)
    folders.gate.set()
    assert all(await asyncio.gather(*waiting))


class SlowlyCompared(str):
    """A digest that two threads compare at the same time."""

    both = threading.Barrier(2)

    def __ne__(self, other: object) -> bool:
        self.both.wait(60)
        return str.__ne__(self, other)

    __hash__ = str.__hash__


async def test_two_threads_that_read_an_adapter_at_the_same_time_must_see_the_same_files():
    """One for itself, one as a part of a combination: answers of both would be in the prefix cache."""
    digests = iter((SlowlyCompared("before"), SlowlyCompared("after")))
    combination = Combination(Method.LINEAR, ("a", "b"), (1.0, 1.0))
    entries = {name: AdapterEntry(name, Path(name)) for name in "ab"}
    entries["of a"] = AdapterEntry("of a", None, combination=combination)
    store = AdapterStore(
        entries,
        lambda entry: Loaded(random_adapter((1,)), next(digests) if entry.name == "a" else "b"),
        combine=lambda entry, parts: Loaded(random_adapter((1,)), "combined"),
        max_bytes=10 * SIZE,
    )
    results = await asyncio.gather(use(store, "a"), use(store, "of a"), return_exceptions=True)
    store.close()
    assert sum(isinstance(result, AdapterError) for result in results) == 1
