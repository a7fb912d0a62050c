"""One replica: requests at once share its speed, and the beginnings of recent prompts are in its KV cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush


class Replica:
    """Limited processor sharing, in virtual time.

    All requests at once progress equally fast. The clock of the replica counts the work done for each of them, so a
    request finishes when this clock reaches what it was at its start plus the request's work. (Parekh and Gallager
    1993, "A generalized processor sharing approach".)

    Args:
        speeds: total speed with n requests at once, by n; there are at most `len(speeds) - 1` requests at once.
        cached_prefixes: beginnings of prompts that the KV cache holds; the least recently used one is dropped.
    """

    __slots__ = ("_cached", "_capacity", "_clock", "_now", "_running", "_speeds", "version")

    def __init__(self, speeds: Sequence[float], cached_prefixes: int) -> None:
        self._speeds = speeds
        self._capacity = cached_prefixes
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._clock = 0.0  # work done for each running request, in seconds alone
        self._now = 0.0
        self._running: list[tuple[float, int]] = []  # clock at the end, and request; a heap
        self.version = 0  # changes whenever `next_end` does

    def has_seen(self, prefix: int) -> bool:
        """Whether the beginning is in the KV cache, where it is from now on."""
        seen = prefix in self._cached
        self._cached[prefix] = None
        if seen:
            self._cached.move_to_end(prefix)
        elif len(self._cached) > self._capacity:
            self._cached.popitem(last=False)
        return seen

    def start(self, now: float, request: int, work: float) -> float:
        """Start a request that takes `work` seconds alone; returns when the next request ends, unless one starts."""
        self._advance(now)
        heappush(self._running, (self._clock + work, request))
        return self._next_end()

    def finish(self, now: float) -> tuple[int, float | None]:
        """End the request that is due now; returns it and when the next one ends, None if there is none."""
        end, request = heappop(self._running)
        self._clock, self._now = end, now
        if not self._running:
            self.version += 1
            return request, None
        return request, self._next_end()

    def clear(self) -> None:
        """Empty the KV cache, as a replica does that stops."""
        self._cached.clear()

    def _advance(self, now: float) -> None:
        if count := len(self._running):
            self._clock += (now - self._now) * self._speeds[count] / count
        self._now = now

    def _next_end(self) -> float:
        self.version += 1
        count = len(self._running)
        return self._now + (self._running[0][0] - self._clock) * count / self._speeds[count]
