"""Sentences with a date in one of several forms, and the date as ISO 8601 writes it."""

from __future__ import annotations

from random import Random
from typing import Any

from examples.adapters.datagen.word_list import words

_MONTHS = words("January February March April May June July August September October November December")
_DATES = (
    "{name} {day}, {year}",
    "{day} {name} {year}",
    "{short} {day}, {year}",
    "{day} {short} {year}",
    "{name} {day}{suffix} {year}",
    "the {day}{suffix} of {name} {year}",
    "{year}/{month:02}/{day:02}",
    "{day:02}.{month:02}.{year}",
)
_FORMS = (
    "{date}",
    "The meeting is on {date}.",
    "Born {date} in Lyon.",
    "due: {date}",
    "We arrived on {date} by train.",
    "Invoice of {date}",
)


def example(rng: Random) -> tuple[str, dict[str, Any]]:
    """A sentence and its date."""
    year, month, day = rng.randint(1950, 2039), rng.randint(1, 12), rng.randint(1, 28)
    suffix = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    name = _MONTHS[month - 1]
    date = rng.choice(_DATES).format(year=year, month=month, day=day, name=name, short=name[:3], suffix=suffix)
    return rng.choice(_FORMS).format(date=date), {"date": f"{year}-{month:02}-{day:02}"}
