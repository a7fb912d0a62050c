"""Make the requests of each workload.

Each workload, round and variant has its own questions, so that no answer of one measurement helps in another; they are
the same for every engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench.asker import Asker
from lab.bench.protocol import Batch, Dialect
from lab.bench.questions import Question, Questions, at_rate
from lab.bench.workloads import Plan, Workload

STORIES = (
    "Once upon a time in a small town by the sea,",
    "The history of the telescope begins with",
    "To bake bread at home you need",
    "A database index is a structure that",
    "The main difference between TCP and UDP is",
    "In the spring the gardener first",
    "Dear colleagues, I am writing to",
    "The four seasons differ because",
)


class Batches:
    """Makes the batches of all workloads.

    Args:
        asker: turns questions into requests.
        source: source of questions.
        plan: sizes of the workloads.
        evaluation: more questions, each asked once, to count passes.
    """

    def __init__(self, asker: Asker, source: Questions, plan: Plan, evaluation: Questions | None = None) -> None:
        self._asker = asker
        self._source = source
        self._plan = plan
        self._evaluation = evaluation

    def of(self, workload: Workload, dialect: Dialect, round_number: int, variant: float | None) -> list[Batch]:
        """The batches of a workload: those that prepare it, and last the one to measure."""
        if workload is Workload.FREE_200:
            return self._stories()
        questions = self.questions(workload, round_number, variant)
        asks = self._asker.asks(questions, dialect, self._plan.max_tokens)
        match workload:
            case Workload.ONE_SEEN:
                return [self._seen_before(questions, dialect, round_number), Batch(asks, 1)]
            case Workload.OPEN:
                assert variant is not None, "an open loop has a rate"
                return [Batch(at_rate(asks, variant), len(asks))]
            case Workload.USERS:
                return [Batch(asks, int(variant or 1))]
        return [Batch(asks, {Workload.LOAD_8: 8, Workload.LOAD_32: 32}.get(workload, 1))]

    def questions(self, workload: Workload, round_number: int, variant: float | None) -> list[Question]:
        """The questions of a workload, the same for all engines."""
        if workload is Workload.EVALUATION:
            assert self._evaluation is not None, "the command refuses that"
            return self._evaluation.draw(len(self._evaluation), seed=workload)
        plan = self._plan
        count = {
            Workload.LOAD_8: plan.load_8,
            Workload.LOAD_32: plan.load_32,
            Workload.OPEN: plan.num_open(variant or 1.0),
            Workload.USERS: int(variant or 1) * plan.per_user,
        }.get(workload, plan.one)
        return self._source.draw(count, f"{workload} {round_number} {variant}", round_number)

    def _seen_before(self, questions: Sequence[Question], dialect: Dialect, round_number: int) -> Batch:
        """Requests with the same prefixes, limited to one token so that no answer is known."""
        earlier = self._source.before(questions, round_number)
        return Batch(self._asker.asks(earlier, dialect, max_tokens=1), 1)

    def _stories(self) -> list[Batch]:
        """One batch to warm up, then the others one at a time."""
        count, tokens = self._plan.free_requests, self._plan.free_tokens
        texts = ["The first words that come to mind are", *(STORIES[i % len(STORIES)] for i in range(count))]
        warm_up, *asks = (self._asker.free(str(i), text, tokens) for i, text in enumerate(texts))
        return [Batch((warm_up,), 1), Batch(tuple(asks), 1)]
