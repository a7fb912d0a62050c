"""The run itself: every workload, round by round, the engines in turn within each.

Owns: the order of things, and what is kept of each measurement. Knows nothing of summaries.

    bench = Bench(lineup, peers, batches, plan); bench.run(workloads, starts=1, stage=print); bench.runs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scripts.benchmark.batches import Batches
from scripts.benchmark.lineup import Lineup
from scripts.benchmark.peers import OURS, Peer
from scripts.benchmark.protocol import Batch, Done, Reply
from scripts.benchmark.workloads import Plan, Workload

SATURATED = 0.85  # an engine that answers less than this share of what arrives is past its limit
ENOUGH = 1.5  # and so is one whose last answer comes so many times later than the last question
Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of one engine."""

    workload: str
    engine: str
    round: int
    variant: float | None  # rate of arrivals, or number of users
    concurrency: int
    wall: float
    cpu: float
    replies: tuple[Reply, ...]
    steps: dict[str, float] = field(default_factory=dict)  # seconds of our engine's steps, by part
    last_arrival: float = 0.0  # seconds after the batch began; of an open loop

    def to_json(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> Run:
        """What `to_json` gave."""
        return Run(**{**record, "replies": tuple(Reply(**reply) for reply in record["replies"])})


class Bench:
    """One run.

    Args:
        lineup: the engines' processes.
        peers: who takes part.
        batches: what is asked.
        plan: how much.
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
        """Everything; `self.runs` grows as it goes, so that a stopped run has what there was.

        Endless engines come last and by themselves: they are processes of their own, and memory is short.
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
        """How often `stage` will be called, engines that fail or saturate aside."""
        peers, plan = len(self._peers), self._plan
        once = {Workload.OPEN: peers * len(plan.rates), Workload.USERS: peers * len(plan.users)}
        once[Workload.EVALUATION] = 1
        return peers * (starts - 1) + sum(once.get(w, peers * plan.rounds) for w in workloads)

    def _rounds(self, workloads: Sequence[Workload], stage: Stage) -> None:
        for number in range(self._plan.rounds):
            for workload in workloads:
                for variant, peers in self._variants(workload, number):
                    for peer in peers:
                        stage(f"round {number + 1} · {workload} {_shown(variant)}· {peer.name}")
                        self._measure(workload, peer, number, variant)

    def _variants(self, workload: Workload, number: int) -> Iterator[tuple[float | None, list[Peer]]]:
        """What a workload runs in a round: long ones once, and rates only until an engine has enough."""
        peers = self._in_turn(number)
        if workload not in (Workload.OPEN, Workload.USERS, Workload.EVALUATION):
            yield None, peers
        elif number > 0:
            return
        elif workload is Workload.EVALUATION:
            yield None, [peer for peer in peers if peer.name == OURS] or peers[:1]
        elif workload is Workload.USERS:
            yield from ((float(users), peers) for users in self._plan.users)
        else:
            for rate in self._plan.rates:
                yield rate, [peer for peer in peers if not self._is_saturated(peer)]

    def _in_turn(self, number: int) -> list[Peer]:
        """Nobody is always the first after the previous workload."""
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
    """Whether more arrived than the engine could answer: it was done well after the last arrival."""
    alone = min((reply.e2e for reply in run.replies), default=0.0)
    return run.wall > run.last_arrival / SATURATED + ENOUGH * alone


def _run(workload: Workload, peer: Peer, number: int, variant: float | None, batch: Batch, done: Done) -> Run:
    seen = (done.wall, done.cpu, done.replies, done.steps)
    last_arrival = max((ask.at or 0.0 for ask in batch.asks), default=0.0)
    return Run(workload, peer.name, number, variant, batch.concurrency, *seen, last_arrival)


def _shown(variant: float | None) -> str:
    return "" if variant is None else f"{variant:g} "
