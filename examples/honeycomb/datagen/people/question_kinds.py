"""The kinds of questions that people ask, how often each is made, and how its parts are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_SPOKEN = {"english": 52, "terse": 14, "telegram": 16, "sentences": 9, "search": 4, "sql": 3, "pipe": 2}
_FILTERED = {"english": 46, "terse": 24, "telegram": 16, "sentences": 10, "sql": 4}

_COMPLETE = {"english": 82, "polite": 8, "sql": 10}
_RANKED = {"english": 66, "polite": 8, "telegram": 8, "sql": 8, "search": 4, "pipe": 6}


@dataclass(frozen=True)
class Kind:
    """One kind of question: shares of its parts, from 0 to 1, and weights.

    Attributes:
        weight: how often the kind is made, relative to the others.
        calculations: weights of a COUNT, a COUNT_DISTINCT, and an aggregate of a number.
        conditions: weights of 0, 1, 2 and 3 conditions.
        flavour: which conditions: `any`, `logic` (negation, lists, existence), `text` (parts of strings) or `ids`.
        either: share with two or more conditions of which one is enough.
        surfaces: weights of the ways to write it.
        exactness: how often a column is called by its name and not by other words; one is drawn for a question.
        errors: share of questions with typing errors, beyond those that all questions have.
    """

    weight: int
    calculations: tuple[int, int, int] = (75, 8, 17)
    conditions: tuple[int, int, int, int] = (55, 32, 11, 2)
    flavour: str = "any"
    either: float = 0.06
    groups: float = 0.3
    ranked: float = 0.15
    having: float = 0.0
    timed: float = 0.1
    surfaces: Mapping[str, int] = field(default_factory=lambda: _SPOKEN)
    exactness: tuple[float, ...] = (0.15, 0.5, 0.9)
    errors: float = 0.0


KINDS: dict[str, Kind] = {
    "search": Kind(
        28, (88, 2, 10), (0, 45, 38, 17), groups=0.2, ranked=0.3, timed=0.1, surfaces={"search": 1}, exactness=(1.0,)
    ),
    "logic": Kind(13, (86, 4, 10), (0, 58, 32, 10), "logic", 0.3, groups=0.2, timed=0.08, surfaces=_FILTERED),
    "verbatim": Kind(
        11, (86, 4, 10), (0, 74, 22, 4), "text", groups=0.16, timed=0.06, surfaces=_FILTERED, exactness=(1.0, 1.0, 0.6)
    ),
    "words": Kind(
        17,
        (60, 10, 30),
        (36, 38, 20, 6),
        groups=0.38,
        surfaces={"polite": 46, "sql": 26, "nrql": 10, "promql": 9, "pipe": 9},
        exactness=(0.1, 0.1, 0.6),
        errors=0.3,
    ),
    "vague": Kind(12, surfaces={"vague": 1}),
    "rate": Kind(4, surfaces={"rate": 1}),
    "time": Kind(11, (72, 6, 22), groups=0.2, timed=1.0),
    "counting": Kind(9, (45, 55, 0), (52, 38, 9, 1), groups=0.15),
    "ids": Kind(10, (84, 4, 12), (0, 80, 17, 3), "ids", groups=0.2, surfaces=_FILTERED),
    "grouping": Kind(8, (70, 8, 22), (62, 30, 7, 1), groups=1.0, ranked=0.1),
    "having": Kind(9, (55, 12, 33), (62, 30, 7, 1), groups=1.0, ranked=0.0, having=1.0, surfaces=_COMPLETE),
    "top": Kind(9, (52, 10, 38), (62, 30, 7, 1), groups=1.0, ranked=1.0, surfaces=_RANKED),
    "aggregate": Kind(10, (0, 0, 100), (62, 30, 7, 1), groups=0.25),
}
