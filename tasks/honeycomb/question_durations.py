"""The lengths of time that a question can mean: a model reads "a day and a half" well, but multiplies badly.

question_durations("p95 over the last day and a half, in half-hour steps")  # ranges (129600,), steps (1800,)
question_durations("errors by service")  # ranges (), steps ()
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tasks.honeycomb.question_times import without_times
from tasks.honeycomb.question_words import DAY, HOUR, MINUTE, MONTH, NUMBER, UNITS, WEEK, spoken_number

_MAX_SECONDS: Final = 999_999_999
_MAX_DURATIONS: Final = 64  # a question with more is no question about a time, and would make a large grammar
_UNITS: Final = {  # pattern: seconds that it can mean
    **{pattern: (seconds,) for pattern, seconds in UNITS.items()},
    **{"minutely": (MINUTE,), "hourly": (HOUR,), "daily": (DAY,), "weekly": (WEEK,)},
    **{"nights?|nightly": (DAY, DAY // 2), "fortnights?|fortnightly": (2 * WEEK,)},
    **dict.fromkeys(("months?", "monthly"), (MONTH, 4 * WEEK)),
}
_DAYS: Final = re.compile(r"\b(?:to+day|yesterday|mornings?|afternoons?|evenings?|overnight)\b", re.IGNORECASE)
_RATE: Final = re.compile(r"\b(?:[qrt]ps|rates?|throughput)\b", re.IGNORECASE)
_FREQUENT: Final = re.compile(
    r"\b(?:twice|times an?|times per|every other|bi-?(?:hourly|daily|weekly))\b", re.IGNORECASE
)
# The range is not a length that is known here: "jobs over 2 hours since Monday", "day by day over the last quarter".
_SINCE: Final = re.compile(
    r"\b(?:since [a-z]|tonight|weekends?|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|quarters?\b|years?\b|so far)",
    re.IGNORECASE,
)
_ASKS_STEP: Final = re.compile(
    r"\b(?:granularity|resolution|interval|steps?|rollup|buckets?|bins?|slots?|points?|pieces|every\w*|trend|graph|chart|"
    r"plot|over time|\w+wise|[dhw]\w{2,5}ly)\b",
    re.IGNORECASE,
)
# "2h30m", "5min30s", "1h15": the parts are held together by a mark, which stands for nothing else.
_MARK: Final = "\x00"
_JOINED: Final = re.compile(r"(?<=\d)( ?(?:mins?|hrs?|[dhm]))(?=\d)", re.IGNORECASE)
_JOINED_MINUTES: Final = re.compile(rf"(?<=h{_MARK})(\d\d)(?![\w:.])", re.IGNORECASE)
_MISSPELT: Final = {"s": (1,), "m": (MINUTE, MONTH), "h": (HOUR,), "d": (DAY,), "w": (WEEK,)}
# Of "few hours", "thre weeks", "twice a day", DATEADD(hour, -8, …): how many is not known.
_UNCLEAR: Final = re.compile(
    r"\b(?:dateadd|twice|times an?|times per|hours|minutes|days|weeks|months|seconds|hrs|mins|secs)\b", re.IGNORECASE
)
_UNIT: Final = "|".join(f"(?P<unit{number}>{pattern})" for number, pattern in enumerate(_UNITS))
_STEPS: Final = "(?:steps?|buckets?|bins?|granularity|resolution|intervals?|points?|slices?)"
_PHRASE: Final = re.compile(
    r"(?P<range>\b(?:last|past|previous|over|within|during)(?: the)?(?: last| past| full)? )?"
    rf"(?P<step>\b(?:by|every|each|per|points? an?|points? (?:every|each|per)|{_STEPS} of) )?"
    # Not inside a word, apart from PT15M and P1DT2H.
    r"(?:(?<![a-z\d.])|(?:(?<=\bPT)|(?<=\dDT))(?=\d)|(?<=\bP)(?=\dD))"
    rf"(?:(?P<others>(?:\d{{1,9}} ?(?:,|-|–|and|or|to) ?){{,4}})(?P<amount>{NUMBER})(?: of(?: an?)?)?[ -]{{,3}})?"
    rf"(?:{_UNIT})(?![a-su-z]|t(?!\d))(?P<more> and an? (?:half|quarter))?"
    rf"(?P<steps>[ -]{_STEPS}\b)?",
    re.IGNORECASE,
)
_BARE: Final = re.compile(r"(?<![\w.:-])(\d{1,6})(?![\d.:])(?: ?([smhdw])[a-z]{2,8})?", re.IGNORECASE)


class Durations(NamedTuple):
    """Lengths in seconds, ascending: those that can be a range, and those that can be a step between two points.

    If there are ranges but no steps, the question asks for no step.
    """

    ranges: tuple[int, ...]
    steps: tuple[int, ...]


def question_durations(question: str) -> Durations:
    """All lengths that a question's words for times can mean; an empty tuple does not limit them.

    There are none of a kind if it has no such words, or "hours" without their number, and none at all if there would be
    very many. There are no ranges if another may be meant ("since Monday"), or if a step is asked in words that are not
    known. A number without a unit counts, beside another length, in seconds, or in the unit that the word after it may
    be misspelt from. A month is 30 days or 4 weeks, a night a day or half of one.
    """
    text = _readable(question)
    rest = _PHRASE.sub(lambda match: " " if match["amount"] else match[0], text)
    found = [] if _UNCLEAR.search(rest) or _FREQUENT.search(text) else list(_found(text))
    other = {int(number) * unit for number, first in _BARE.findall(rest) for unit in _MISSPELT.get(first.lower(), (1,))}
    ranges, steps = ({length for role, some in found if role != no for length in some} for no in ("step", "range"))
    ranges |= {DAY, DAY // 2} if ranges and _DAYS.search(rest) else set()
    steps |= {1} if _RATE.search(rest) and (steps or ranges) else set()
    if _SINCE.search(rest) or (not steps and _ASKS_STEP.search(rest)):
        ranges = set()
    lengths = [_limited(some, other) for some in (ranges, steps)]
    return Durations(*lengths) if max(map(len, lengths)) <= _MAX_DURATIONS else Durations((), ())


def _limited(lengths: set[int], other: set[int]) -> tuple[int, ...]:
    """The lengths, and the others if there is one, ascending."""
    return tuple(sorted(length for length in lengths | other if 0 < length <= _MAX_SECONDS)) if lengths else ()


def _readable(question: str) -> str:
    """The question without dates, commas in numbers and quotes around them; _MARK joins the parts of a length."""
    text = re.sub(
        r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub(r"'(\d+)'", r"\1", without_times(question).replace(_MARK, " "))
    )
    return _JOINED_MINUTES.sub(r"\1m", _JOINED.sub(rf"\1{_MARK}", text))


def _found(text: str) -> Iterator[tuple[str, set[int]]]:
    """The lengths of each phrase, with what its words say that it is: a range, a step, or neither."""
    role, lengths, end = "", set[int](), len(text)
    for match in filter(_is_length, _PHRASE.finditer(text)):
        new, gap = _lengths(match), text[end : match.start()].strip(" ").lower()
        goes_on = match["amount"] and not _role(match) and 0 <= match.start() - end <= 5 and gap in ("", "and", _MARK)
        sums = {one + other for one in lengths for other in new if other < one} if goes_on else set()
        if sums and gap:
            lengths = sums  # as in 2h30m, "1 hour and 30 minutes"
        else:
            yield role, lengths
            role, lengths = _role(match) or (role if sums else ""), new | sums
        end = len(text) if match["steps"] else match.end()
    yield role, lengths


def _is_length(match: re.Match[str]) -> bool:
    """Whether it is no stray letter, as in "it's", "S3" and "m5.large"."""
    unit = next(match[f"unit{number}"] for number in range(len(_UNITS)) if match[f"unit{number}"])
    return bool(len(unit) > 1 or match["amount"] or match["range"] or match["step"])


def _role(match: re.Match[str]) -> str:
    if match["step"] or match["steps"] or match[0].lower().endswith("ly"):
        return "step"
    return "range" if match["range"] else ""


def _lengths(match: re.Match[str]) -> set[int]:
    units = next(lengths for number, lengths in enumerate(_UNITS.values()) if match[f"unit{number}"])
    amount = "" if re.search(r"\d +[a-z]+ly\b", match[0], re.IGNORECASE) else match["amount"]  # "error 57014 hourly"
    amounts = {spoken_number(amount) if amount else 1.0}
    others = match["others"] or ""
    amounts |= {float(number) for number in re.findall(r"\d+", others)}
    if amount and re.fullmatch(NUMBER, others + amount, re.IGNORECASE):  # as in "1,5 hours", "3 and a half hours"
        amounts.add(spoken_number(others + amount))
    more = 0.0 if match["more"] is None else 0.5 if match["more"].lower().endswith("half") else 0.25
    return {round((number + more) * unit) for number in amounts for unit in units}
