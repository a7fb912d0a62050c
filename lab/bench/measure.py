"""Measure every workload in several rounds, in each of which the engines take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.bench.batches import Batches
from lab.bench.lineup import Lineup
from lab.bench.peers import Peer
from lab.bench.protocol import Batch, Done, Reply
from lab.bench.workloads import Plan, Workload

SATURATED = 0.85  # an engine that answers less than this fraction of arriving requests is saturated
ENOUGH = 1.5  # so is one whose last answer comes later than this multiple of the last arrival's time
Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """The replies of one engine to one batch."""

    workload: str
    engine: str
    round: int
    variant: float | None  # arrival rate, or number of users
    concurrency: int
    wall: float
    cpu: float
    replies: tuple[Reply, ...]
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part
    last_arrival: float = 0.0  # in an open loop, seconds after the start of the batch

    def to_json(self) -> dict[str, Any]:
        """The run as JSON for the result file."""
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> Run:
        """The run that `to_json` converted."""
        return Run(**{**record, "replies": tuple(Reply(**reply) for reply in record["replies"])})


class Bench:
    """One run of the benchmark.

    Args:
        lineup: the engines' processes.
        peers: the engines.
        batches: makes the requests.
        plan: sizes of the workloads.
    """

    def __init__(
        self,
        lineup: Lineup,
        peers: Sequence[Peer],
        batches: Batches,
        plan: Plan,
    ) -> None:
        self.runs: list[Run] = []
        self._lineup = lineup
        self._peers = peers
        self._batches = batches
        self._plan = plan

    def run(self, workloads: Sequence[Workload], starts: int, stage: Stage) -> None:
        """Run all workloads. Results are appended to `self.runs`, so that an interrupted run has the first ones.

        Engines with the endless view of the weights run last and alone, because they are additional processes.
        """
        for attempt in range(1, starts):
            for peer in self._in_turn(attempt):
                stage(f"start {attempt + 1} · {peer.name}")
                self._lineup.start_again(peer)
        normal = [w for w in workloads if w is not Workload.FREE_200]
        self._rounds(normal, stage)
        self._lineup.close()
        self._rounds([w for w in workloads if w is Workload.FREE_200], stage)

    def num_stages(self, workloads: Sequence[Workload], starts: int) -> int:
        """Number of calls of `stage` if no engine fails or saturates."""
        peers, plan = len(self._peers), self._plan
        once = {Workload.OPEN: peers * len(plan.rates), Workload.USERS: peers * len(plan.users)}
        once[Workload.EVALUATION] = peers
        return peers * (starts - 1) + sum(once.get(w, peers * plan.rounds) for w in workloads)

    def _rounds(self, workloads: Sequence[Workload], stage: Stage) -> None:
        for number in range(self._plan.rounds):
            for workload in workloads:
                for variant, peers in self._variants(workload, number):
                    for peer in peers:
                        stage(f"round {number + 1} · {workload} {_shown(variant)}· {peer.name}")
                        self._measure(workload, peer, number, variant)

    def _variants(self, workload: Workload, number: int) -> Iterator[tuple[float | None, list[Peer]]]:
        """The variants of a workload in a round: long ones only once, and rates only until an engine is saturated."""
        peers = self._in_turn(number)
        if workload not in (Workload.OPEN, Workload.USERS, Workload.EVALUATION):
            yield None, peers
        elif number > 0:
            return
        elif workload is Workload.EVALUATION:
            yield None, peers
        elif workload is Workload.USERS:
            yield from ((float(users), peers) for users in self._plan.users)
        else:
            for rate in self._plan.rates:
                yield rate, [peer for peer in peers if not self._is_saturated(peer)]

    def _in_turn(self, number: int) -> list[Peer]:
        """The peers in an order that rotates, so that none is always the first."""
        first = number % len(self._peers)
        return [*self._peers[first:], *self._peers[:first]]

    def _is_saturated(self, peer: Peer) -> bool:
        runs = [r for r in self.runs if r.workload == Workload.OPEN and r.engine == peer.name]
        return bool(runs) and is_saturated(runs[-1])

    def _measure(self, workload: Workload, peer: Peer, number: int, variant: float | None) -> None:
        batches = self._batches.of(workload, peer.dialect, number, variant)
        done = self._lineup.measure(peer, batches, endless=workload is Workload.FREE_200)
        if done is not None:
            self.runs.append(_run(workload, peer, number, variant, batches[-1], done))


def is_saturated(run: Run) -> bool:
    """Whether more requests arrived than the engine could answer, so that it finished well after the last arrival."""
    alone = min((reply.e2e for reply in run.replies), default=0.0)
    return run.wall > run.last_arrival / SATURATED + ENOUGH * alone


def _run(workload: Workload, peer: Peer, number: int, variant: float | None, batch: Batch, done: Done) -> Run:
    seen = (done.wall, done.cpu, done.replies, done.steps)
    last_arrival = max((ask.at or 0.0 for ask in batch.asks), default=0.0)
    return Run(workload, peer.name, number, variant, batch.concurrency, *seen, last_arrival)


def _shown(variant: float | None) -> str:
    return "" if variant is None else f"{variant:g} "
