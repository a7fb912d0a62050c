"""The terminals of the grammar that are numbers: limited to what the question can mean, where that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tasks.honeycomb.question_durations import Durations
from tasks.honeycomb.question_numbers import question_numbers
from tasks.honeycomb.question_times import question_times

_UNIX: Final = "[1-9][0-9]{0,10}"
_SECONDS: Final = "[1-9][0-9]{0,8}"
_MAX_PAIRS: Final = 256  # of a start and an end, whose distance is a range too
_ANY: Final = {  # terminal: the pattern of all its numbers
    "LIMIT": "[1-9][0-9]{0,2}|1000",
    "START": _UNIX,
    "END": _UNIX,
    "RANGE": _SECONDS,
    "STEP": _SECONDS,
    # Without an exponent Python writes up to 20 digits after the point: three zeros and 17 digits.
    "NUMBER": r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,20})?(?:e[+-][0-9]{2})?",
}


def number_terminals(question: str | None, durations: Durations) -> list[str]:
    """The Lark terminals of limits, times, lengths of time and numbers that are compared with: lines `NAME: /pattern/`.

    Args:
        question: None allows any number. LIMIT is never limited.
        durations: of the question, if there is one.
    """
    found = dict[str, Iterable[float]]()
    if question is not None:
        starts, ends = question_times(question, durations.ranges)
        found = {"START": starts, "END": ends, "STEP": durations.steps, "NUMBER": question_numbers(question)}
        if durations.ranges and len(starts) * len(ends) <= _MAX_PAIRS:
            between = {end - start for start in starts for end in ends if end > start}
            found["RANGE"] = sorted({*durations.ranges, *between})
    return [f"{name}: /{'|'.join(map(_number, found.get(name, ()))) or pattern}/" for name, pattern in _ANY.items()]


def _number(value: float) -> str:
    """A pattern of a number as Python writes it in JSON."""
    return re.escape(repr(int(value) if value == int(value) else value))
