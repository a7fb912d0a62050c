"""Questions: the inputs of predictions, their sources, and their arrival times."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

from lab.bench.protocol import Ask


class QuestionError(Exception):
    """A question or a file of questions is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prediction.

    Args:
        inputs: by name of predict's parameters.
    """

    inputs: Mapping[str, Any]


class Questions(Protocol):
    """A source of questions, the same for every engine."""

    def __len__(self) -> int:
        """Number of different questions."""
        ...

    @property
    def warm_up(self) -> Sequence[Question]:
        """Questions to warm up each engine."""
        ...

    def draw(self, count: int, seed: str, number: int = 0) -> list[Question]:
        """`count` questions; the same for the same seed and number, others for another seed."""
        ...

    def before(self, questions: Sequence[Question], number: int) -> list[Question]:
        """For each question one whose prompt has the same prefix, to fill a prefix cache."""
        ...


def arrival_times(count: int, rate: float) -> list[float]:
    """Seconds at which requests arrive in a Poisson process of `rate` requests a second; always the same ones."""
    rng = random.Random(f"arrivals {rate:g}")
    return list(accumulate(rng.expovariate(rate) for _ in range(count)))


def at_rate(asks: Sequence[Ask], rate: float) -> tuple[Ask, ...]:
    """The same requests with Poisson arrivals at `rate` requests a second, like those of many independent users."""
    times = arrival_times(len(asks), rate)
    return tuple(replace(ask, at=time) for ask, time in zip(asks, times, strict=True))
