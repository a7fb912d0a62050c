"""What one row of the check finds: figures, what is wrong, and what was not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.gpu_check.place import Place

Verdict = Literal["right", "wrong", "measured", "not run"]
NO_GPU: Final = "this machine has no GPU"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Args:
        what: was measured or counted.
        value: of it.
        unit: of the value.
        limit: the largest value that is right; None for a measurement, which nothing calls wrong.
        note: how it was obtained, where that is not plain.
    """

    what: str
    value: float
    unit: str = ""
    limit: float | None = None
    note: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the value exceeds its limit; NaN does."""
        return self.limit is not None and not self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Point:
    """A pass in the roofline picture.

    Args:
        label: for the legend: passes with the same label are one line.
        flop: floating-point operations.
        num_bytes: read from memory at least.
        seconds: that it took.
    """

    label: str
    flop: float
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a row.

    Args:
        figures: in the order of the table.
        wrong: what was wrong besides figures over their limits, in words.
        not_run: what was not run, with the reason.
        points: for the picture.
    """

    figures: tuple[Figure, ...] = ()
    wrong: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What became of the row; a part that was not run changes nothing about the rest."""
        if self.wrong or any(figure.is_wrong for figure in self.figures):
            return "wrong"
        if not self.figures:
            return "not run"
        return "right" if any(figure.limit is not None for figure in self.figures) else "measured"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One row.

    Args:
        name: for --only.
        title: for people.
        run: does it; an exception is an error of the row, and the next rows go on.
    """

    name: str
    title: str
    run: Callable[[Place], Finding]
