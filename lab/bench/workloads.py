"""The workloads, their sizes and their requests.

Each workload, round and variant has its own questions, so that no answer of one measurement helps in another; they are
the same for every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lab.bench.asker import Asker, Inputs
from lab.bench.protocol import Batch, at_rate
from lab.bench.questions import Questions


class Workload(StrEnum):
    """A workload, by its name on the command line and in results."""

    ONE_NEW = "one-new"  # one request at a time, with columns that were not seen before
    ONE_SEEN = "one-seen"  # the same, with columns that another question had before
    LOAD_8 = "load-8"
    LOAD_32 = "load-32"
    OPEN = "open"  # Poisson arrivals, at rates up to saturation
    FREE_200 = "free-200"  # eight requests after a warm-up, 200 tokens each, without a grammar and without an end token
    USERS = "users"  # 1–9 users in parallel, each with requests in sequence
    EVALUATION = "evaluation"  # passes per answer over many requests


STANDARD = (*(Workload.ONE_NEW, Workload.LOAD_8, Workload.LOAD_32, Workload.ONE_SEEN), Workload.OPEN, Workload.FREE_200)
LOADS = {Workload.LOAD_8: 8, Workload.LOAD_32: 32}  # users at once
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of all workloads."""

    rounds: int = 3
    one: int = 20
    load_8: int = 40
    load_32: int = 64
    open_seconds: float = 12.0
    open_most: int = 64
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    users: tuple[int, ...] = tuple(range(1, 10))
    per_user: int = 64
    max_tokens: int = 256
    free_tokens: int = 200
    free_requests: int = len(STORIES)

    @staticmethod
    def quick() -> Plan:
        """A plan that takes seconds for each engine, to check that everything works."""
        return Plan(
            rounds=1,
            one=3,
            load_8=8,
            load_32=32,
            open_seconds=2.0,
            open_most=8,
            rates=(4.0, 16.0),
            users=(1, 2),
            per_user=2,
            max_tokens=128,
            free_tokens=16,
            free_requests=2,
        )

    def num_open(self, rate: float) -> int:
        """Number of requests at an arrival rate: as many as arrive in the time, within bounds."""
        return max(min(8, self.open_most), min(self.open_most, round(rate * self.open_seconds)))


class Batches:
    """Makes the batches of all workloads."""

    def __init__(self, asker: Asker, source: Questions, plan: Plan, evaluation: Questions | None = None) -> None:
        self._asker = asker
        self._source = source
        self._plan = plan
        self._evaluation = evaluation  # each of them is asked once, to count passes

    def of(self, workload: Workload, number: int, variant: float | None, *, as_schema: bool = False) -> list[Batch]:
        """The batches of a workload in a round: those that prepare it, and last the one to measure.

        The variant is an arrival rate, or a number of users; for `as_schema` see `Asker.ask`.
        """
        if workload is Workload.FREE_200:
            return self._stories()
        questions = self.questions(workload, number, variant)
        asks = self._asker.asks(questions, self._plan.max_tokens, as_schema=as_schema)
        match workload:
            case Workload.ONE_SEEN:
                return [self._seen_before(questions, number, as_schema), Batch(asks, 1)]
            case Workload.OPEN:
                assert variant is not None, "an open loop has a rate"
                return [Batch(at_rate(asks, variant), len(asks))]
            case Workload.USERS:
                return [Batch(asks, int(variant or 1))]
        return [Batch(asks, LOADS.get(workload, 1))]

    def questions(self, workload: Workload, number: int, variant: float | None) -> list[Inputs]:
        """The questions of a workload in a round, the same for all engines."""
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
        return self._source.draw(count, f"{workload} {number} {variant}", number)

    def _seen_before(self, questions: Sequence[Inputs], number: int, as_schema: bool) -> Batch:
        """Requests with the same prefixes, limited to one token so that no answer is known."""
        earlier = self._source.before(questions, number)
        return Batch(self._asker.asks(earlier, max_tokens=1, as_schema=as_schema), 1)

    def _stories(self) -> list[Batch]:
        """The batches of free text: one to warm up, then the others one at a time."""
        count, tokens = self._plan.free_requests, self._plan.free_tokens
        texts = ["The first words that come to mind are", *(STORIES[i % len(STORIES)] for i in range(count))]
        warm_up, *asks = (self._asker.free(str(i), text, tokens) for i, text in enumerate(texts))
        return [Batch((warm_up,), 1), Batch(tuple(asks), 1)]
