"""Event-driven simulation of replicas behind the gateway, with the gateway's rules.

A request goes to the replica with the fewest requests, or with prefix routing to the one that its prefix belongs to,
if that has not many more. While all are full, requests wait in one queue, first come, first served.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.simulation.inputs import Arrivals, ServiceTimes

MAX_IMBALANCE: Final = 4  # more requests than elsewhere that a cached prefix is worth; gateway/upstream/pool.py
_AWAY: Final = 1 << 30  # load of a replica that is not ready
_END, _READY, _IDLE = range(3)


class Replica:
    """One replica: limited processor sharing, in virtual time.

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


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas start when requests wait, and stop when they have none.

    Args:
        minimum: replicas that always run.
        cold_start: seconds from the decision to start a replica until it is ready.
        idle: seconds without a request after which a replica stops.
    """

    minimum: int
    cold_start: float
    idle: float = 60.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas.

    Args:
        replicas: number of replicas, at most, with scaling.
        slots: requests at once in a replica.
        routes_by_prefix: whether requests with equal beginnings go to the same replica.
        cached_prefixes: beginnings of prompts that a replica's KV cache holds.
        scaling: None if all replicas run always.
    """

    replicas: int
    slots: int = 32
    routes_by_prefix: bool = False
    cached_prefixes: int = 200
    scaling: Scaling | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened.

    Args:
        latencies: seconds from arrival to end, in the order of arrivals, [n] float64.
        waits: seconds in the queue, [n] float64.
        cached_share: share of requests that found the beginning of their prompt in the KV cache.
        replica_seconds: the seconds for which replicas ran, starting included.
        seconds: the time until the last request ended.
    """

    latencies: NDArray[np.float64]
    waits: NDArray[np.float64]
    cached_share: float
    replica_seconds: float
    seconds: float


def simulate(fleet: Fleet, service: ServiceTimes, arrivals: Arrivals, rng: np.random.Generator) -> Outcome:
    """Run all arrivals to their end; each takes a measured time, drawn at random."""
    return _Simulation(fleet, service, arrivals, rng).run()


class _Simulation:
    def __init__(self, fleet: Fleet, service: ServiceTimes, arrivals: Arrivals, rng: np.random.Generator) -> None:
        count, scaling = len(arrivals.times), fleet.scaling
        self._fleet, self._arrivals = fleet, arrivals
        self._work = [rng.choice(times, count).tolist() for times in (service.new, service.seen)]
        self._prefixes = arrivals.prefixes.tolist()
        self._owners = rng.integers(0, fleet.replicas, int(arrivals.prefixes.max(initial=0)) + 1).tolist()
        speeds = service.speeds(fleet.slots)
        self._replicas = [Replica(speeds, fleet.cached_prefixes) for _ in range(fleet.replicas)]
        self._loads = np.zeros(fleet.replicas, np.int64)
        self._running_since = [0.0] * fleet.replicas
        if scaling is not None:
            self._loads[scaling.minimum :] = _AWAY
        self._away = list(range(fleet.replicas))[scaling.minimum :][::-1] if scaling is not None else []
        self._num_starting = 0
        self._events: list[tuple[float, int, int, int]] = []  # time, kind, replica, its version
        self._waiting: deque[int] = deque()
        self._started, self._ended = [0.0] * count, [0.0] * count
        self._num_left, self._num_cached = count, 0
        self._replica_seconds = 0.0

    def run(self) -> Outcome:
        """Handle events and arrivals in the order of their times."""
        events, now = self._events, 0.0
        for request, at in enumerate(self._arrivals.times.tolist()):
            while events and events[0][0] <= at:
                self._handle(*heappop(events))
            now = at
            replica = self._choose(request) if not self._waiting else None
            if replica is None:
                self._wait(now, request)
            else:
                self._start(now, request, replica)
        while self._num_left:
            now, *event = heappop(events)
            self._handle(now, *event)
        times = self._arrivals.times
        for replica in np.flatnonzero(self._loads < _AWAY).tolist():
            self._replica_seconds += now - self._running_since[replica]
        return Outcome(
            latencies=np.array(self._ended) - times,
            waits=np.array(self._started) - times,
            cached_share=self._num_cached / max(1, len(times)),
            replica_seconds=self._replica_seconds,
            seconds=now,
        )

    def _handle(self, now: float, kind: int, replica: int, version: int) -> None:
        if kind == _READY:
            self._num_starting -= 1
            self._loads[replica] = 0
            while self._waiting and self._loads[replica] < self._fleet.slots:
                self._start(now, self._waiting.popleft(), replica)
            if not self._loads[replica]:
                self._expect_idle(now, replica)
        elif version == self._replicas[replica].version:
            if kind == _END:
                self._end(now, replica)
            else:
                self._stop(now, replica)

    def _end(self, now: float, replica: int) -> None:
        request, following = self._replicas[replica].finish(now)
        self._ended[request] = now
        self._num_left -= 1
        self._loads[replica] -= 1
        if self._waiting:
            self._start(now, self._waiting.popleft(), replica)
        elif following is not None:
            heappush(self._events, (following, _END, replica, self._replicas[replica].version))
        else:
            self._expect_idle(now, replica)

    def _start(self, now: float, request: int, replica: int) -> None:
        one = self._replicas[replica]
        seen = one.has_seen(self._prefixes[request])
        self._num_cached += seen
        end = one.start(now, request, self._work[seen][request])
        heappush(self._events, (end, _END, replica, one.version))
        self._loads[replica] += 1
        self._started[request] = now

    def _choose(self, request: int) -> int | None:
        """The replica for a request, None if all are full."""
        loads, slots = self._loads, self._fleet.slots
        first = int(loads.argmin())  # of several with the fewest, as the gateway does
        fewest = int(loads[first])
        if fewest >= slots:
            return None
        if self._fleet.routes_by_prefix:
            own = self._owners[self._prefixes[request]]
            while loads[own] >= slots:  # while it is full or away, another one takes its place
                own = (own + 1) % len(loads)
            if loads[own] <= fewest + MAX_IMBALANCE:
                return int(own)
        return first

    def _wait(self, now: float, request: int) -> None:
        """Queue a request, and start a replica if those that are starting will not have room for it."""
        self._waiting.append(request)
        scaling = self._fleet.scaling
        if scaling is None or not self._away or len(self._waiting) <= self._num_starting * self._fleet.slots:
            return
        replica = self._away.pop()
        self._num_starting += 1
        self._running_since[replica] = now
        heappush(self._events, (now + scaling.cold_start, _READY, replica, 0))

    def _expect_idle(self, now: float, replica: int) -> None:
        if self._fleet.scaling is not None:
            version = self._replicas[replica].version
            heappush(self._events, (now + self._fleet.scaling.idle, _IDLE, replica, version))

    def _stop(self, now: float, replica: int) -> None:
        assert self._fleet.scaling is not None, "only scaling expects idle replicas"
        if self._fleet.replicas - len(self._away) - self._num_starting <= self._fleet.scaling.minimum:
            return
        self._loads[replica] = _AWAY
        self._away.append(replica)
        self._replicas[replica].clear()
        self._replica_seconds += now - self._running_since[replica]
