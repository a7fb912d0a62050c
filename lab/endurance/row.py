"""Describes what one row of the endurance run does and finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from lab.endurance.stage import Stage


@dataclass(frozen=True, slots=True)
class Check:
    """One figure and its limit.

    Args:
        what: what is measured or counted.
        figure: the figure that was found.
        limit: the largest figure that passes.
        unit: the unit of both.
        is_time: whether it depends on how busy the machine is, so a quick run shows it and does not fail for it.
    """

    what: str
    figure: float
    limit: float
    unit: str = ""
    is_time: bool = False

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit; NaN is not."""
        return self.figure <= self.limit


@dataclass(frozen=True, slots=True)
class Result:
    """What a row has found.

    Args:
        checks: each figure with its limit.
        about: further figures without a limit.
        losses: what was lost, in words; for the reader of a row that failed.
    """

    checks: tuple[Check, ...]
    about: Mapping[str, float | str] = field(default_factory=dict)
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much a run does.

    Args:
        minutes: the soak ends after half of them; the other rows have fixed amounts.
        cancels: predictions of the cancel storm.
        soak: predictions of the soak.
        distinct: different questions of the soak, which are also asked alone.
        cache: predictions with a small KV cache.
        waiters: predictions in flight when an engine is killed or a server ends.
        watched_seconds: the longest watch after an engine or a server was killed.
        overload_seconds: seconds of ten times the load.
        same_id: requests with one id at once.
        rude_seconds: seconds of rude clients, and of none before.
        wide: the number of columns of their widest questions.
        fuzz: cases of each kind.
        long_texts: cases of 64 KiB of each kind.
        hostile_rounds: how often each hostile schema is sent.
        is_quick: leaves out what takes longest; limits on time are shown only.
    """

    minutes: float = 20.0
    cancels: int = 1000
    soak: int = 10_000
    distinct: int = 200
    cache: int = 200
    waiters: int = 32
    watched_seconds: float = 12.0
    overload_seconds: float = 60.0
    same_id: int = 100
    rude_seconds: float = 30.0
    wide: int = 1000
    fuzz: int = 10_000
    long_texts: int = 100
    hostile_rounds: int = 5
    is_quick: bool = False


QUICK: Final = Amounts(
    minutes=1.0,
    cancels=16,
    soak=18,
    distinct=6,
    cache=8,
    waiters=8,
    overload_seconds=1.0,
    same_id=20,
    rude_seconds=1.0,
    wide=100,
    fuzz=100,
    long_texts=2,
    hostile_rounds=1,
    is_quick=True,
)

Verdict = Literal["passed", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    name: str  # for --only
    title: str  # for people
    run: Callable[[Stage, Amounts], Result]


def verdict(result: Result, amounts: Amounts) -> Verdict:
    """Whether all figures that count are within their limits."""
    return "passed" if all(check.passed for check in result.checks if counts(check, amounts)) else "failed"


def counts(check: Check, amounts: Amounts) -> bool:
    """Whether a figure over its limit fails the row."""
    return not (amounts.is_quick and check.is_time)
