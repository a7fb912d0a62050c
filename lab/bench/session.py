"""Runs the benchmark once: every workload in several rounds, in each of which the engines take turns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from lab.bench.asker import Asker
from lab.bench.figures import Run, compare_answers
from lab.bench.lineup import Lineup
from lab.bench.machine import about_run
from lab.bench.peers import LLAMA, Form, Peer, WeightForms
from lab.bench.questions import Questions, RequestFile
from lab.bench.result import make_result
from lab.bench.workloads import Batches, Plan, Workload
from pipeline.paths import ROOT

SATURATED = 0.85  # an engine that answers less than this fraction of arriving requests is saturated
ENOUGH = 1.5  # so is one whose last answer comes later than this multiple of the last arrival's time


@dataclass(frozen=True)
class Session:
    """The options of one run."""

    peers: Sequence[Peer]
    workloads: Sequence[Workload]
    with_passes: bool  # whether to measure passes of our model too
    plan: Plan
    forms: WeightForms
    asker: Asker
    questions: Questions
    evaluation: Questions | None  # more questions, for counting passes
    say: Callable[[str], None]  # called with what is measured next, and with a message for each failure

    def run(self) -> dict[str, Any]:
        """Measure and return the result; after Ctrl-C, it has the measurements so far."""
        about = {
            **about_run(),
            "weights": {"folder": self.forms.name, "sha256": self.forms.digest},
            "task": self.asker.task_name,
            "plan": asdict(self.plan),
            "interrupted": False,
        }
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
        batches = Batches(self.asker, self.questions, self.plan, self.evaluation)
        runs: list[Run] = []
        logs = ROOT / "build/bench/logs"
        with closing(Lineup(self.peers, self.forms, self.asker, self.questions.warm_up, logs, self.say)) as lineup:
            try:
                lineup.prepare()
                self._measure(lineup, batches, runs)
                if self.with_passes:
                    about["passes"] = self._time_passes()
            except KeyboardInterrupt:
                about["interrupted"] = True
                self.say("interrupted; what was measured so far follows")
        if isinstance(self.questions, RequestFile) and self.questions.is_repeated:
            about["questions_repeated"] = True
            self.say(f"only {len(self.questions)} different requests: prefix caches had seen some of them before")
        result = make_result(runs, lineup.entries, about)
        result["answers"] = compare_answers(runs, batches, self.asker, lineup.entries)
        return result

    def _measure(self, lineup: Lineup, batches: Batches, runs: list[Run]) -> None:
        """Append to `runs`, so that an interrupted run has the first ones."""
        for number in range(self.plan.rounds):
            for workload in self.workloads:
                for variant, peer in self._turns(workload, number, runs):
                    self.say(f"round {number + 1}: {workload}{_shown(variant)}, {peer.name}")
                    asked = batches.of(workload, number, variant, as_schema=peer.engine == LLAMA)
                    if (done := lineup.measure(peer, asked)) is not None:
                        last = asked[-1]
                        arrival = max((ask.at or 0.0 for ask in last.asks), default=0.0)
                        place = (str(workload), peer.name, number, variant, last.concurrency)
                        runs.append(Run(*place, done.wall, done.cpu, done.replies, done.steps, arrival))

    def _turns(self, workload: Workload, number: int, runs: Sequence[Run]) -> Iterator[tuple[float | None, Peer]]:
        """The variants of a workload in a round: long ones only once, and rates only until an engine is saturated."""
        first = number % len(self.peers)  # it rotates, so that none is always the first
        peers = [*self.peers[first:], *self.peers[:first]]
        if workload not in (Workload.OPEN, Workload.USERS, Workload.EVALUATION):
            yield from ((None, peer) for peer in peers)
        elif number > 0:
            return
        elif workload is Workload.EVALUATION:
            yield from ((None, peer) for peer in peers)
        elif workload is Workload.USERS:
            yield from ((float(users), peer) for users in self.plan.users for peer in peers)
        else:
            for rate in self.plan.rates:
                yield from ((rate, peer) for peer in peers if not _was_saturated(peer, runs))

    def _time_passes(self) -> dict[str, Any] | None:
        from lab.bench.passes import measure_in_process  # torch

        self.say("passes")
        try:
            return measure_in_process(self.forms.path(Form.QUANTIZED))
        except OSError as error:
            self.say(f"passes: {error}")
            return None


def is_saturated(run: Run) -> bool:
    """Whether more requests arrived than the engine could answer, so that it finished well after the last arrival."""
    alone = min((reply.e2e for reply in run.replies), default=0.0)
    return run.wall > run.last_arrival / SATURATED + ENOUGH * alone


def _was_saturated(peer: Peer, runs: Sequence[Run]) -> bool:
    last = [run for run in runs if run.workload == Workload.OPEN and run.engine == peer.name]
    return bool(last) and is_saturated(last[-1])


def _shown(variant: float | None) -> str:
    return "" if variant is None else f" {variant:g}"
