"""The adapters in memory: loaded in threads when they are first asked for, the least recently used dropped.

async with store.lease("invoices") as lora: ...
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, EngineBusyError, EngineDeadError
from serving.kernels.lora import LoraAdapter
from serving.models.lora_loader import LoadedAdapter

LOAD_SECONDS = 60.0
_CLOSED = "the engine was closed"


@dataclass(eq=False, slots=True)
class _Slot:
    """An adapter that is loaded, or being loaded; `users` requests need it."""

    entry: AdapterEntry
    future: Future[LoraAdapter] = field(default_factory=Future)
    users: int = 0
    nbytes: int = 0


class AdapterStore:
    """Loads adapters, and holds as many as fit. One in use or pinned is never dropped.

    Args:
        entries: the registry.
        load: reads an adapter from its folder.
        max_bytes: limit of all adapters in memory. One that has just been read counts once it is checked.
        load_seconds: how long a request waits for its adapter.
    """

    def __init__(
        self,
        entries: Mapping[str, AdapterEntry],
        load: Callable[[AdapterEntry], LoadedAdapter],
        *,
        max_bytes: int,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self._entries = entries
        self._load_entry = load
        self._max_bytes = max_bytes
        self._load_seconds = load_seconds
        self._lock = threading.Lock()  # guards the next two and all slots
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # least recently used first
        self._digests: dict[str, str] = {}  # of what has been loaded once
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="paged-adapter")

    @property
    def names(self) -> Collection[str]:
        """All adapters of the registry."""
        return self._entries.keys()

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
        for name, entry in self._entries.items():
            if entry.pinned:
                slot = self._hold(name)
                try:
                    slot.future.result()
                finally:
                    self._release(slot)

    @asynccontextmanager
    async def lease(self, name: str | None) -> AsyncGenerator[LoraAdapter | None]:
        """The adapter, which stays in memory inside the block; None for None.

        Raises:
            AdapterError: it cannot be used, or was not loaded in time.
            EngineBusyError: there is no memory for it, because others are in use.
        """
        if name is None:
            yield None
            return
        slot = self._hold(name)
        try:
            yield await self._wait(slot)
        finally:
            self._release(slot)

    def close(self) -> None:
        """Start no more loads; requests that wait for one fail with EngineDeadError."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            loading = [slot.future for slot in self._slots.values() if not slot.future.done()]
        for future in loading:
            _fail(future, EngineDeadError(_CLOSED))

    async def _wait(self, slot: _Slot) -> LoraAdapter:
        try:
            async with asyncio.timeout(self._load_seconds):
                return await asyncio.shield(asyncio.wrap_future(slot.future))  # others wait for the same one
        except TimeoutError as error:
            raise AdapterError(
                f"adapter {slot.entry.name!r} was not loaded within {self._load_seconds:g} s; try again later"
            ) from error

    def _hold(self, name: str) -> _Slot:
        with self._lock:
            slot = self._slots.get(name)
            if slot is None:
                slot = _Slot(self._entries[name])
                try:
                    self._threads.submit(self._load, slot)
                except RuntimeError as error:  # after `close`
                    raise EngineDeadError(_CLOSED) from error
                self._slots[name] = slot
            slot.users += 1
            self._slots.move_to_end(name)
            return slot

    def _release(self, slot: _Slot) -> None:
        with self._lock:
            slot.users -= 1

    def _load(self, slot: _Slot) -> None:
        """Runs in a thread. An adapter that fails leaves no trace, so that the next request tries again."""
        try:
            loaded = self._checked(slot.entry)
            self._make_room(slot, loaded.lora.nbytes)
        except BaseException as error:
            with self._lock:
                self._slots.pop(slot.entry.name, None)
            _fail(slot.future, error)
        else:
            with suppress(InvalidStateError):  # closed meanwhile
                slot.future.set_result(loaded.lora)

    def _checked(self, entry: AdapterEntry) -> LoadedAdapter:
        try:
            loaded = self._load_entry(entry)
        except Exception as error:  # of whatever library reads a damaged file
            raise AdapterError(f"adapter {entry.name!r} cannot be loaded: {error}") from error
        expected = entry.digest or self._digests.get(entry.name, loaded.digest)
        if loaded.digest != expected:
            raise AdapterError(
                f"adapter {entry.name!r} has the digest {loaded.digest}, not {expected}: {entry.folder} has changed; "
                "restore it, or list the new one and restart the server"
            )
        self._digests[entry.name] = expected  # answers of another one may be in the prefix cache
        return loaded

    def _make_room(self, slot: _Slot, nbytes: int) -> None:
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
                used -= other.nbytes
            slot.nbytes = nbytes


def _fail(future: Future[LoraAdapter], error: BaseException) -> None:
    with suppress(InvalidStateError):  # closed meanwhile
        future.set_exception(error)
