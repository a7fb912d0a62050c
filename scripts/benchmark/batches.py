"""The requests of each workload.

Owns: which question is asked when, so that no answer of one measurement helps in another: columns come
in an order of their own for every workload, round and variant, the same for every engine. Knows nothing
of engines.

    Batches(asker, teams, Plan()).of(Workload.LOAD_8, Dialect.LARK, round_number=0, variant=None)
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.benchmark.protocol import Batch
from scripts.benchmark.questions import Asker, Dialect, Question, Team, at_rate, draw
from scripts.benchmark.workloads import Plan, Workload

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
    """Makes batches.

    Args:
        asker: makes requests of questions.
        teams: who asks.
        plan: how much.
        evaluation: further teams, for counting passes.
    """

    def __init__(
        self, asker: Asker, teams: Sequence[Team], plan: Plan, evaluation: Sequence[Team] = ()
    ) -> None:
        self._asker = asker
        self._teams = teams
        self._plan = plan
        self._evaluation = evaluation

    def of(
        self, workload: Workload, dialect: Dialect, round_number: int, variant: float | None
    ) -> list[Batch]:
        """What goes before, and last what is measured."""
        if workload is Workload.FREE_200:
            return self._stories()
        questions = self.questions(workload, round_number, variant)
        asks = self._asker.asks(questions, dialect, self._plan.max_tokens)
        match workload:
            case Workload.ONE_SEEN:
                return [self._seen_before(questions, dialect, round_number), Batch(asks, 1)]
            case Workload.OPEN:
                assert variant is not None, "an open loop has a rate"
                return [Batch(at_rate(asks, variant, seed=f"arrivals {variant}"), len(asks))]
            case Workload.USERS:
                return [Batch(asks, int(variant or 1))]
        return [Batch(asks, {Workload.LOAD_8: 8, Workload.LOAD_32: 32}.get(workload, 1))]

    def questions(self, workload: Workload, round_number: int, variant: float | None) -> list[Question]:
        """What is asked, for whatever engine."""
        if workload is Workload.EVALUATION:
            return draw(self._evaluation, len(self._evaluation), seed=workload)
        plan = self._plan
        count = {
            Workload.LOAD_8: plan.load_8,
            Workload.LOAD_32: plan.load_32,
            Workload.OPEN: plan.num_open(variant or 1.0),
            Workload.USERS: int(variant or 1) * plan.per_user,
        }.get(workload, plan.one)
        return draw(self._teams, count, f"{workload} {round_number} {variant}", question=round_number)

    def _seen_before(self, questions: Sequence[Question], dialect: Dialect, round_number: int) -> Batch:
        """The same columns in the same order, another question; one token, so that no answer is known."""
        earlier = []
        for i, question in enumerate(questions):
            asked = self._teams[i % len(self._teams)].questions
            earlier.append(Question(asked[(round_number + 1) % len(asked)], question.columns))
        return Batch(self._asker.asks(earlier, dialect, max_tokens=1), 1)

    def _stories(self) -> list[Batch]:
        """One to warm up, then the rest one at a time."""
        count, tokens = self._plan.free_requests, self._plan.free_tokens
        texts = ["The first words that come to mind are", *(STORIES[i % len(STORIES)] for i in range(count))]
        warm_up, *asks = (self._asker.free(str(i), text, tokens) for i, text in enumerate(texts))
        return [Batch((warm_up,), 1), Batch(tuple(asks), 1)]
