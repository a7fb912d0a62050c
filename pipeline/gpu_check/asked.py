"""Asks engines the benchmark's questions, one at a time, each engine in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from pipeline.benchmark.asker import Asker
from pipeline.benchmark.lineup import Lineup
from pipeline.benchmark.peer_weights import WeightForms
from pipeline.benchmark.peers import Peer
from pipeline.benchmark.protocol import Batch, Reply
from pipeline.benchmark.question_source import measured_questions
from pipeline.gpu_check.finding import Figure
from pipeline.paths import ROOT

_MAX_TOKENS = 256
_LOGS = ROOT / "build/gpu_check/logs"


@dataclass(frozen=True, slots=True)
class Answers:
    """An engine's answers.

    Args:
        name: of the engine.
        replies: in the order of the questions; none if it failed.
        meanings: of the replies; None for one that is no valid answer.
        error: why it failed; None if it did not.
    """

    name: str
    replies: tuple[Reply, ...]
    meanings: tuple[str | None, ...]
    error: str | None

    @property
    def wrong(self) -> list[str]:
        """What makes them wrong, in words."""
        if self.error is not None:
            return [f"{self.name}: {self.error}"]
        return [
            f"{self.name}: {reply.error or f'no valid answer: {reply.text[:200]!r}'}"
            for reply, meaning in zip(self.replies, self.meanings, strict=True)
            if meaning is None
        ]

    def figures(self) -> list[Figure]:
        """Times and passes."""
        if not self.replies:
            return []
        first = 1000 * median(reply.ttft or reply.e2e for reply in self.replies)
        return [
            Figure(f"{self.name}: an answer, median of {len(self.replies)}", self._milliseconds(), "ms"),
            Figure(f"{self.name}: first token", first, "ms"),
            Figure(f"{self.name}: passes of an answer", fmean(reply.passes for reply in self.replies)),
        ]

    def equal(self, other: Answers) -> int:
        """How many texts are the other's."""
        return sum(a.text == b.text for a, b in zip(self.replies, other.replies, strict=False))

    def _milliseconds(self) -> float:
        return 1000 * median(reply.e2e for reply in self.replies)


def ask(peers: Sequence[Peer], weights: Path, count: int) -> list[Answers]:
    """Start the engines one after the other and ask each the same questions, with columns that it has not seen.

    Raises:
        QuestionError, TaskFileError: the checkpoint's task is none that has questions.
    """
    asker = Asker(weights)
    source = measured_questions(weights, asker, None)
    questions = source.draw(count, "gpu_check")
    forms = WeightForms(weights, unquantized=None, cache=ROOT / "build/bench")
    found = []
    for peer in peers:  # a lineup each, because engines on one GPU would share its memory
        with closing(Lineup([peer], forms, asker, source.warm_up, _LOGS, _ignore)) as lineup:
            lineup.prepare()
            done = lineup.measure(peer, [Batch(asker.asks(questions, peer.dialect, _MAX_TOKENS), 1)])
            error = lineup.entries[peer.name].error
        replies = tuple(done.replies) if done is not None else ()
        meanings = tuple(asker.meaning(q, r) for q, r in zip(questions, replies, strict=False))
        found.append(Answers(peer.name, replies, meanings, error))
    return found


def _ignore(message: str) -> None:
    """An engine's failure is in its answers."""
