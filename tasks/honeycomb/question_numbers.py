"""The numbers that a question can compare with: a model reads "over 20 minutes" well, but converts it badly.

question_numbers("jobs over 20 min")  # has 20, 1200 and 1200000, but not 120000
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

from tasks.honeycomb.question_words import DAY, NUMBER, UNITS, spoken_number

_MAX_NUMBERS: Final = 400  # a question with more would make a large grammar
_SMALLEST, _LARGEST = 1e-4, 1e16
_STATUSES: Final = {
    *{200, 201, 204, 301, 302, 304, 400, 401, 403, 404, 408, 409, 410, 418, 422, 429},
    *{500, 501, 502, 503, 504},
}
_UNSAID: Final = (*range(13), 100, 299, 300, 399, 499, 599, 600, *_STATUSES)
_TIMES: Final = {  # unit: seconds
    **{"ns|nanoseconds?": 1e-9, "us|µs|micros?|microseconds?": 1e-6, "ms|millis?|milliseconds?": 1e-3},
    **{**UNITS, "y|yrs?|years?": 365 * DAY},
}
_PREFIXES: Final = {  # unit: power of 1000 or 1024
    **{"b|bytes?": 0, "k|kb|ki|kib|kbytes?|kilobytes?": 1, "m|mb|mi|mib|megs?|mbytes?|megabytes?": 2},
    **{"g|gb|gi|gib|gigs?|gbytes?|gigabytes?": 3, "t|tb|ti|tib|tbytes?|terabytes?": 4},
}
_MULTIPLES: Final = {"k|thousand|grand": 1e3, "m|mn|mio|mill?|millions?": 1e6, "b|bn|billions?": 1e9}
_MULTIPLE_OR_CENTS: Final = (1.0, 100.0, 1e3, 1e6)
_OTHER: Final = (1.0, 0.01, 1e-3, 60.0, 3600.0, 86_400.0, 1e9, *_MULTIPLE_OR_CENTS)  # 50 %, 5 €, an unknown unit

_SEPARATED: Final = r"\d{1,3}(?:[ ,_']\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?e\d+|\.\d+"
_PHRASE: Final = re.compile(
    rf"(?P<sign>(?<![\w-])[-−] ?[$€£]?|\bminus |\bnegative )?(?P<number>{_SEPARATED}|(?<![a-z]){NUMBER}|\d+(?:\.\d+)?)"
    r"(?:\+?[ -]?(?P<unit>[a-zµ]+))?(?P<more> and an? (?:half|quarter))?",
    re.IGNORECASE,
)
_LONG: Final = re.compile(r"(?<!\d)[1-9]\d{15,18}(?!\d)")  # a float would not have all digits
_BETWEEN: Final = re.compile(r"\s*(?:,|-|–|and|or|to)?\s*", re.IGNORECASE)  # two numbers with one unit
_CONNECTORS: Final = ("and", "or", "to")


def question_numbers(question: str) -> tuple[float, ...]:
    """All numbers that a filter or having can compare with, ascending; empty if very many, which limits nothing.

    Each number of the question, in all units that its column may have: seconds in ms, euros in cents, MB in bytes.
    Also small numbers and statuses, which need not be said: "retried" is over 0, "5xx" is at least 500.
    """
    found = {float(number) for number in _UNSAID} | {int(number) for number in _LONG.findall(question)}
    unit, next_start, next_seconds = "", -1, 0.0
    for match in reversed(list(_PHRASE.finditer(question))):
        own = (match["unit"] or "").lower()
        end = match.start("unit") if own in _CONNECTORS else match.end()
        if own in ("", *_CONNECTORS) and next_start >= 0 and _BETWEEN.fullmatch(question, end, next_start):
            own = unit
        products = {number * factor for number, factor in product(_numbers(match), _factors(own))}
        seconds = next(
            (
                second * max(_numbers(match), default=0.0)
                for names, second in _TIMES.items()
                if re.fullmatch(names, own)
            ),
            0.0,
        )
        if next_seconds and seconds > next_seconds and re.fullmatch(r" ?(?:and )?", question[match.end() : next_start]):
            products |= {(seconds + next_seconds) / other for other in _TIMES.values()}  # as in 1m30s
        unit, next_start, next_seconds = own, match.start(), seconds
        sized = {float(f"{number:.15g}") for number in products if _SMALLEST <= number < _LARGEST}
        found |= sized | ({-number for number in sized} if match["sign"] else set())
    return tuple(sorted(found)) if len(found) <= _MAX_NUMBERS else ()


def _numbers(match: re.Match[str]) -> Iterator[float]:
    text = match["number"].lower()
    plain = re.sub(r"(?<=\d)[ ,_'](?=\d{3})", "", text)
    if "/" not in text or not match["unit"]:
        yield from (float(number) for number in re.findall(r"\d+(?:\.\d+)?", text))
    if re.fullmatch(r"\d*\.?\d+(?:e\d{1,2})?", plain):
        yield float(plain)
    if re.fullmatch(NUMBER, text):
        more = 0.5 if match["more"] and match["more"].endswith("half") else 0.25 if match["more"] else 0.0
        yield spoken_number(text)
        yield spoken_number(text) + more


def _factors(unit: str) -> set[float]:
    """What a number with this unit is multiplied by, for each unit that the column may have."""
    factors = set[float]()
    for names, seconds in _TIMES.items():
        if re.fullmatch(names, unit):
            factors |= {seconds / other for other in _TIMES.values()}
    for names, power in _PREFIXES.items():
        if re.fullmatch(names, unit):
            factors |= {base ** (power - other) for base in (1000.0, 1024.0) for other in range(power + 1)}
    for names, multiple in _MULTIPLES.items():
        if re.fullmatch(names, unit):
            factors |= {multiple * other for other in _MULTIPLE_OR_CENTS}
    return factors | {1.0} if factors else {*_OTHER}
