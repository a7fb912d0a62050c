"""Write time ranges, absolute times, comparisons and granularities in words."""

from datetime import UTC, datetime
from random import Random

from examples.honeycomb.datagen.people.meaning import Meaning

_UNITS = ((604_800, "week", "w"), (86_400, "day", "d"), (3600, "hour", "h"), (60, "minute", "m"), (1, "second", "s"))
_ABBREVIATED = {"hour": "hr", "minute": "min", "second": "sec"}
_CALENDAR: dict[int, tuple[str, ...]] = {
    86_400: ("today", "since yesterday", "in the last day", "past day", "over the last 24h", "last 24 hours")
}
_CALENDAR |= {604_800: ("this week", "in the past week", "past week", "last 7 days", "since last week", "last 7d")}
_CALENDAR |= {2_592_000: ("this month", "over the past month", "last 30 days", "past 30d", "in the last month")}
_CALENDAR |= {1800: ("in the last half hour", "past half an hour"), 43_200: ("in the last half day",)}
_CALENDAR |= {1_209_600: ("over the last fortnight", "past two weeks", "last 2 weeks")}
_CALENDAR |= {3600: ("in the last hour", "past hour", "last hr", "in the past 60 min", "this last hour")}
_LEADS = (
    *("in the last", "in the last", "over the last", "for the past", "within the last", "last", "last", "past"),
    *("during the last", "over the past", "from the last", "in past", "the last", "looking back", "these past"),
)
_ADVERBS: dict[int, tuple[str, ...]] = {
    60: ("minutely", "minute by minute", "per minute", "by the minute", "each minute")
}
_ADVERBS |= {3600: ("hourly", "hourly", "hour by hour", "per hour", "by the hour", "each hour", "bucketed by hour")}
_ADVERBS |= {86_400: ("daily", "daily", "day by day", "per day", "each day", "bucketed by day")}
_STEPS = (
    *("in {u} steps", "at {u} granularity", "in {u} buckets", "one point every {t}", "with a {u} resolution"),
    *("every {t}", "at {u} intervals", "with {u} granularity", "{u} buckets", "granularity {t}", "in chunks of {t}"),
    *("with {u} bins", "sampled every {t}", "{u} interval", "{u} resolution", "per {t}", "step {t}"),
)
_COMPARED: dict[int, tuple[str, ...]] = {
    1800: ("compared to half an hour ago", "vs 30 minutes earlier"),
    7200: ("vs 2 hours ago",),
}
_COMPARED |= {3600: ("compared to the previous hour", "vs an hour ago"), 28_800: ("compared with 8 hours ago",)}
_COMPARED |= {86_400: ("compared to yesterday", "vs yesterday", "against the day before", "day over day")}
_COMPARED |= {604_800: ("compared to last week", "vs last week", "week over week", "against a week earlier")}
_COMPARED |= {2_419_200: ("compared to 4 weeks ago", "vs four weeks ago", "against 28 days before")}
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 10: "ten", 12: "twelve", 15: "fifteen", 30: "thirty"}


def time_words(rng: Random, meaning: Meaning) -> str:
    """All times of a meaning but the granularity; empty if it has none."""
    compared = rng.choice(_COMPARED[meaning.compare]) if meaning.compare else ""
    if meaning.start:
        return absolute_words(rng, meaning.start, meaning.end)
    if meaning.until_ago and meaning.window:
        return _ago(rng, meaning.until_ago, meaning.window)
    return " ".join(part for part in (window_words(rng, meaning.window) if meaning.window else "", compared) if part)


def amount(seconds: int, rng: Random, *, short: bool | None = None) -> str:
    """`90 minutes`, `90m`: in the largest unit that divides it, or sometimes in minutes or hours."""
    fitting = [unit for unit in _UNITS if seconds % unit[0] == 0 and seconds // unit[0] <= 120]
    size, word, letter = fitting[0] if rng.random() < 0.8 or len(fitting) == 1 else fitting[1]
    count = seconds // size
    if short or (short is None and rng.random() < 0.3):
        return f"{count}{letter}"
    if short is None and word in _ABBREVIATED and rng.random() < 0.3:
        return f"{count}{rng.choice((' ', ' ', ''))}{_ABBREVIATED[word]}" + (
            "s" if count > 1 and rng.random() < 0.4 else ""
        )
    number = _NUMBERS[count] if short is None and count in _NUMBERS and rng.random() < 0.12 else str(count)
    return f"{number} {word}" + ("s" if count > 1 else "")


def window_words(rng: Random, seconds: int) -> str:
    """`in the last 90 minutes`, `since yesterday`."""
    if seconds in _CALENDAR and rng.random() < 0.4:
        return rng.choice(_CALENDAR[seconds])
    text = amount(seconds, rng)
    lead = rng.choice(_LEADS)
    if text.startswith("1 ") and lead != "looking back":
        return f"{lead} {text.removeprefix('1 ')}"
    return f"since {text} ago" if rng.random() < 0.06 else f"{lead} {text}"


def step_words(rng: Random, seconds: int) -> str:
    """`in 30 second steps`, `hourly`."""
    if seconds in _ADVERBS and rng.random() < 0.5:
        return rng.choice(_ADVERBS[seconds])
    text = amount(seconds, rng, short=rng.random() < 0.25)
    singular = text.removesuffix("s") if " " in text else text
    return rng.choice(_STEPS).format(u=singular.replace(" ", rng.choice((" ", " ", "-"))), t=text)


def absolute_words(rng: Random, start: int, end: int | None) -> str:
    """`since 1741046400`, `on 2025-03-04`, `from 2025-03-04T10:00:00Z to 2025-03-04T12:00:00Z`; all in UTC."""
    if start % 86_400 == 0 and end == start + 86_400 and rng.random() < 0.7:
        return f"{rng.choice(('on', 'on', 'for', 'during'))} {_moment(start, 'day')}"
    moments = [start] if end is None else [start, end]
    style = rng.choice(("unix", "unix", "zulu", "minute"))
    if all(moment % 86_400 == 0 for moment in moments):
        style = rng.choice(("unix", "day", "day", "zulu"))
    elif style == "minute" and any(moment % 60 for moment in moments):
        style = "zulu"
    texts = [_moment(moment, style) for moment in moments]
    if end is None:
        return f"{rng.choice(('since', 'since', 'after', 'from', 'starting', 'start_time'))} {texts[0]}" + (
            rng.choice(("", " onwards")) if style == "unix" else ""
        )
    return rng.choice(("from {} to {}", "between {} and {}", "from {} until {}", "{} to {}", "start {} end {}")).format(
        *texts
    )


def _moment(seconds: int, style: str) -> str:
    if style == "unix":
        return str(seconds)
    pattern = {"day": "%Y-%m-%d", "zulu": "%Y-%m-%dT%H:%M:%SZ", "minute": "%Y-%m-%d %H:%M"}[style]
    return datetime.fromtimestamp(seconds, UTC).strftime(pattern)


def _ago(rng: Random, near: int, far: int) -> str:
    size, word, letter = next(unit for unit in _UNITS if near % unit[0] == 0 and far % unit[0] == 0)
    a, b = near // size, far // size
    return rng.choice(
        (
            f"between {a} and {b} {word}s ago",
            f"from {b} to {a} {word}s ago",
            f"{a}-{b} {word}s ago",
            f"from {b}{letter} ago to {a}{letter} ago",
            f"between {b}{letter} and {a}{letter} ago",
        )
    )
