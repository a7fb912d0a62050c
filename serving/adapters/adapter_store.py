"""The adapters in memory: loaded in threads when they are first asked for, the least recently used dropped.

async with store.lease("invoices") as lora: ...
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, EngineBusyError, EngineDeadError
from serving.weights.adapter_files import Loaded

LOAD_SECONDS = 60.0
_PATIENCE = 1.0  # seconds until a request that waits asks again whether the engine lives
_CLOSED = "the engine was closed"


class SizedAdapter(Protocol):
    """An adapter in the form that an engine computes with."""

    @property
    def nbytes(self) -> int:
        """The memory that the adapter takes, in bytes."""
        ...


T = TypeVar("T", bound=SizedAdapter)


@dataclass(eq=False, slots=True)
class _Slot(Generic[T]):
    """An adapter that is loaded, or being loaded; `users` requests need it."""

    entry: AdapterEntry
    future: Future[T] = field(default_factory=Future)
    users: int = 0
    nbytes: int = 0


class AdapterStore(Generic[T]):
    """Loads adapters, and holds as many as fit. One in use or pinned is never dropped.

    Args:
        entries: the registry.
        load: fetches an adapter, if need be, and reads it; its errors are shown to callers.
        combine: makes an entry's combination of its parts; engines without refuse such entries when they start.
        max_bytes: limit of all adapters in memory. One that has just been read counts once it is checked.
        load_seconds: how long a request waits for its adapter.
        on_close: ends what `load` waits for.
        drop: frees an adapter that is no longer in memory here; must not wait.
    """

    def __init__(
        self,
        entries: Mapping[str, AdapterEntry],
        load: Callable[[AdapterEntry], Loaded[T]],
        *,
        max_bytes: int,
        combine: Callable[[AdapterEntry, Mapping[str, Loaded[T]]], Loaded[T]] | None = None,
        load_seconds: float = LOAD_SECONDS,
        on_close: Callable[[], None] = lambda: None,
        drop: Callable[[T], None] = lambda lora: None,
    ) -> None:
        self.entries = entries  # all adapters that requests may name
        self._load_entry = load
        self._combine = combine
        self._max_bytes = max_bytes
        self._load_seconds = load_seconds
        self._on_close = on_close
        self._drop = drop
        self._lock = threading.Lock()  # guards the next two, and all slots
        self._slots: OrderedDict[str, _Slot[T]] = OrderedDict()  # least recently used first
        self._digests: dict[str, str] = {}  # the digest of each that has been loaded once
        # More than one: most of a load may be waiting for the answers to its golden prompts.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="adapter-load")
        # Apart, so that slow servers and combinations hold up no adapter of a folder.
        self._remote_threads = ThreadPoolExecutor(8, thread_name_prefix="adapter-fetch")

    @property
    def in_memory(self) -> dict[str, int]:
        """The adapters in memory with their bytes, the least recently used first."""
        with self._lock:
            return {name: slot.nbytes for name, slot in self._slots.items() if slot.nbytes}

    def load_pinned(self) -> None:
        """Load those that the registry pins.

        Raises:
            AdapterError: one of them cannot be used, or they do not fit together.
        """
        for name, entry in self.entries.items():
            if entry.pinned:
                slot = self._hold(name)
                try:
                    slot.future.result()
                finally:
                    self._release(slot)

    @asynccontextmanager
    async def lease(self, name: str | None, check_alive: Callable[[], None] = lambda: None) -> AsyncGenerator[T | None]:
        """The adapter, which stays in memory inside the block; None for None.

        `check_alive` is called every second of a load, and raises what ends the wait for it.

        Raises:
            AdapterError: it cannot be used, or was not loaded in time.
            EngineBusyError: there is no memory for it, because others are in use.
        """
        if name is None:
            yield None
            return
        slot = self._hold(name)
        try:
            yield await self._wait(slot, check_alive)
        finally:
            self._release(slot)

    def close(self) -> None:
        """Start no more loads; requests that wait for one fail with EngineDeadError."""
        self._on_close()
        for pool in (self._threads, self._remote_threads):
            pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            loading = [slot.future for slot in self._slots.values() if not slot.future.done()]
        for future in loading:
            _fail(future, EngineDeadError(_CLOSED))

    async def _wait(self, slot: _Slot[T], check_alive: Callable[[], None]) -> T:
        loaded = asyncio.wrap_future(slot.future)
        loaded.add_done_callback(_take_error)
        deadline = asyncio.get_running_loop().time() + self._load_seconds
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            # Unlike wait_for, this cancels nothing: others wait for the same load.
            done, _ = await asyncio.wait({loaded}, timeout=min(left, _PATIENCE))
            if done:
                return loaded.result()
            check_alive()
        raise AdapterError(
            f"adapter {slot.entry.name!r} was not loaded within {self._load_seconds:g} s; try again later"
        )

    def _hold(self, name: str) -> _Slot[T]:
        with self._lock:
            slot = self._slots.get(name)
            if slot is None:
                slot = _Slot[T](self.entries[name])
                try:
                    (self._threads if isinstance(slot.entry.source, Path) else self._remote_threads).submit(
                        self._load, slot
                    )
                except RuntimeError as error:  # after `close`
                    raise EngineDeadError(_CLOSED) from error
                self._slots[name] = slot
            slot.users += 1
            self._slots.move_to_end(name)
            return slot

    def _release(self, slot: _Slot[T]) -> None:
        with self._lock:
            slot.users -= 1

    def _load(self, slot: _Slot[T]) -> None:
        """Runs in a thread. An adapter that fails leaves no trace, so that the next request tries again."""
        try:
            loaded = self._read(slot.entry)
            try:
                self._check_digest(slot.entry, loaded.digest)
                self._make_room(slot, loaded.lora.nbytes)
            except BaseException:
                self._drop(loaded.lora)
                raise
        except BaseException as error:
            with self._lock:
                self._slots.pop(slot.entry.name, None)
            _fail(slot.future, error)
        else:
            with suppress(InvalidStateError):  # closed meanwhile
                slot.future.set_result(loaded.lora)

    def _read(self, entry: AdapterEntry) -> Loaded[T]:
        if entry.combination is None:
            return self._load_entry(entry)
        assert self._combine is not None, "this engine refuses combinations"
        try:
            parts = {name: self._load_entry(self.entries[name]) for name in entry.combination.names}
            for name, part in parts.items():
                self._check_digest(self.entries[name], part.digest)
            return self._combine(entry, parts)
        except AdapterError as error:
            raise AdapterError(f"adapter {entry.name!r} cannot be loaded: {error}") from error

    def _check_digest(self, entry: AdapterEntry, digest: str) -> None:
        expected = entry.digest
        if expected is None:
            with self._lock:  # several threads may read the same adapter, alone and as a part of combinations
                # Answers of the first one may be in the prefix cache.
                expected = self._digests.setdefault(entry.name, digest)
        if digest != expected:
            raise AdapterError(
                f"adapter {entry.name!r} has the digest {digest}, not {expected}: its files have changed; "
                "restore them, or list the new one and restart the server"
            )

    def _make_room(self, slot: _Slot[T], nbytes: int) -> None:
        with self._lock:
            idle = [s for s in self._slots.values() if s.nbytes and not s.users and not s.entry.pinned]
            used = sum(other.nbytes for other in self._slots.values())
            droppable = sum(other.nbytes for other in idle)
            pinned = sum(other.nbytes for other in self._slots.values() if other.entry.pinned)
            if pinned + nbytes > self._max_bytes:
                raise AdapterError(
                    f"adapter {slot.entry.name!r} needs {nbytes:,} bytes, and pinned adapters leave "
                    f"{self._max_bytes - pinned:,} of {self._max_bytes:,}; set ADAPTER_MEMORY_MB higher"
                )
            if used - droppable + nbytes > self._max_bytes:
                raise EngineBusyError(
                    f"adapter {slot.entry.name!r} needs {nbytes:,} bytes, and adapters in use or pinned leave "
                    f"{max(0, self._max_bytes - used + droppable):,} of {self._max_bytes:,}; "
                    "try again later, or set ADAPTER_MEMORY_MB higher"
                )
            for other in idle:
                if used + nbytes <= self._max_bytes:
                    break
                del self._slots[other.entry.name]
                self._drop(other.future.result())
                used -= other.nbytes
            slot.nbytes = nbytes


def _fail(future: Future[T], error: BaseException) -> None:
    with suppress(InvalidStateError):  # closed meanwhile
        future.set_exception(error)


def _take_error(loaded: asyncio.Future[T]) -> None:
    """An error that nobody waits for any longer is not a mistake here."""
    if not loaded.cancelled():
        loaded.exception()
