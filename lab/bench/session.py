"""Run the benchmark once and make its result."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lab.bench.answers import compare_answers
from lab.bench.asker import Asker
from lab.bench.batches import Batches
from lab.bench.lineup import Lineup
from lab.bench.machine import describe_checkout, describe_machine
from lab.bench.measure import Bench, Stage
from lab.bench.peer_weights import Form, WeightForms
from lab.bench.peers import Peer, for_task
from lab.bench.questions import Questions
from lab.bench.request_file import RequestFile
from lab.bench.result_file import make_result
from lab.bench.workloads import Plan, Workload
from pipeline.paths import ROOT


@dataclass(frozen=True)
class Session:
    """The options of one run.

    Args:
        peers: the engines.
        workloads: of each engine.
        with_passes: whether to measure passes of our model too.
        plan: sizes of the workloads.
        starts: times that each engine is started.
        forms: the weights in all formats.
        asker: turns questions into requests.
        questions: source of questions.
        evaluation: more questions, for counting passes.
    """

    peers: Sequence[Peer]
    workloads: Sequence[Workload]
    with_passes: bool
    plan: Plan
    starts: int
    forms: WeightForms
    asker: Asker
    questions: Questions
    evaluation: Questions | None

    def run(self, open_stages: Callable[[int], Stage], warn: Callable[[str], None]) -> dict[str, Any]:
        """Measure and return the result; after Ctrl-C, it has the measurements so far.

        Args:
            open_stages: called with the number of stages; returns a function to call at each stage.
            warn: called with a message for each failure.
        """
        about = self._about()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
        peers = [for_task(peer, has_gbnf=self.asker.has_gbnf) for peer in self.peers]
        batches = Batches(self.asker, self.questions, self.plan, self.evaluation)
        logs = ROOT / "build/bench/logs"
        with closing(Lineup(peers, self.forms, self.asker, self.questions.warm_up, logs, warn)) as lineup:
            bench = Bench(lineup, peers, batches, self.plan)
            try:
                lineup.prepare()
                stage = open_stages(bench.num_stages(self.workloads, self.starts) + self.with_passes)
                bench.run(self.workloads, self.starts, stage)
                if self.with_passes:
                    stage("passes")
                    about["passes"] = self._time_passes(warn)
            except KeyboardInterrupt:
                about["interrupted"] = True
                warn("interrupted; what was measured so far follows")
        if isinstance(self.questions, RequestFile) and self.questions.is_repeated:
            about["questions_repeated"] = True
            warn(f"only {len(self.questions)} different requests: prefix caches had seen some of them before")
        result = make_result(bench.runs, lineup.entries, about)
        result["answers"] = compare_answers(bench.runs, batches, self.asker, lineup.entries)
        return result

    def _about(self) -> dict[str, Any]:
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(["scripts/dev/bench", *sys.argv[1:]]),
            **describe_checkout(),
            "machine": describe_machine(),
            "weights": {"folder": self.forms.name, "sha256": self.forms.digest},
            "task": self.asker.task_name,
            "plan": asdict(self.plan),
            "interrupted": False,
        }

    def _time_passes(self, warn: Callable[[str], None]) -> dict[str, Any] | None:
        from lab.bench.passes import measure_in_process  # torch

        try:
            return measure_in_process(self.forms.path(Form.QUANTIZED))
        except OSError as error:
            warn(f"passes: {error}")
            return None
