"""Generate quantities with units, and the text for them: durations, sizes and time spans.

Values of durations and sizes are in the unit of the column.
"""

from random import Random

from examples.honeycomb.datagen.sample_values import Value

MS_PER = {"us": 0.001, "ms": 1, "s": 1000, "min": 60_000}
_DURATIONS = (5, 10, 20, 50, 75, 100, 150, 200, 250, 300, 400, 500, 500, 750, 800, 1000, 1000, 1500, 2000)
_LONG_DURATIONS = (2000, 2500, 3000, 5000, 5000, 10_000, 15_000, 20_000, 30_000, 60_000, 120_000, 300_000)
_BYTES_PER = {"b": 1, "kb": 1000, "mb": 1_000_000}
_SIZES = (1, 2, 5, 10, 20, 50, 64, 100, 128, 200, 256, 500, 512)
_SPANS = {
    "second": (1, (30, 30, 90)),
    "minute": (60, (1, 2, 5, 5, 10, 10, 15, 15, 20, 30, 30, 45, 60, 90)),
    "hour": (3600, (1, 1, 1, 2, 3, 4, 6, 8, 12, 24, 24, 36, 48, 72)),
    "day": (86_400, (1, 1, 2, 3, 5, 7, 7, 10, 14, 30, 60, 90)),
    "week": (604_800, (1, 1, 2, 3, 4, 6)),
    "month": (2_592_000, (1, 1, 2, 3)),
}
_SPAN_WEIGHTS = (1, 26, 32, 24, 11, 4)
_SHORT = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}
_ABBREVIATED = {"second": "sec", "minute": "min", "hour": "hr"}
_WORDS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]


def whole(number: float) -> int | float:
    """The number as an integer if it is one, otherwise rounded to six digits."""
    return int(number) if float(number).is_integer() else round(number, 6)


def number(rng: Random, amount: int | float) -> str:
    """The text of an amount: mostly digits, sometimes with separators or a k."""
    if isinstance(amount, int) and amount >= 1000 and rng.random() < 0.2:
        return f"{amount:,}"
    if isinstance(amount, int) and amount >= 1000 and amount % 1000 == 0 and rng.random() < 0.15:
        return f"{amount // 1000}k"
    return str(amount)


def duration(rng: Random, unit: str) -> Value:
    """A random duration: its value in the column's unit, and its text with any unit."""
    ms = rng.choice(_DURATIONS + _LONG_DURATIONS)
    value = whole(ms / MS_PER.get(unit, 1))
    if ms >= 60_000:
        count = ms // 60_000
        return Value(value, f"{count}{rng.choice((' minute', ' min', ' minute'))}{'s' if count > 1 else ''}")
    if ms >= 1000 and rng.random() < 0.8:
        seconds = whole(ms / 1000)
        name = rng.choice(("s", "s", " s", " sec", " second", " second", " seconds"))
        if name == " second" and seconds == 1 and rng.random() < 0.4:
            return Value(value, rng.choice(("a second", "one second")))
        return Value(value, f"{seconds}{name}{'s' if name == ' second' and seconds != 1 else ''}")
    return Value(value, f"{ms}{rng.choice(('ms', 'ms', 'ms', ' ms', ' milliseconds', ' msec'))}")


def size(rng: Random, unit: str) -> Value:
    """A random size: its value in the column's unit, and its text with any unit (1 KB is 1000 bytes)."""
    count = rng.choice(_SIZES)
    names = [("KB", 1000), ("kb", 1000), ("MB", 10**6), ("mb", 10**6), ("megabytes", 10**6), ("GB", 10**9)]
    name, factor = rng.choice([n for n in names if n[1] >= _BYTES_PER[unit]])
    gap = " " if len(name) > 2 or rng.random() < 0.5 else ""
    return Value(whole(count * factor / _BYTES_PER[unit]), f"{count}{gap}{name}")


def span(rng: Random) -> tuple[int, str, str]:
    """A random time span: its seconds, and its text without (`hour`) and with its count (`1 hour`)."""
    unit = rng.choices(tuple(_SPANS), _SPAN_WEIGHTS)[0]
    seconds, counts = _SPANS[unit]
    count = rng.choice(counts)
    return seconds * count, span_text(rng, count, unit), span_text(rng, count, unit, counted=True)


def span_text(rng: Random, count: int, unit: str, *, counted: bool = False) -> str:
    """The text of a number of units, as people type it."""
    roll = rng.random()
    if count == 1:
        if not counted and roll < 0.75:
            return unit
        if counted and roll < 0.4:
            return f"{'an' if unit == 'hour' else 'a'} {unit}"
    if unit == "minute" and count == 30 and roll < 0.1:
        return "half an hour" if counted else "half hour"
    if unit in _SHORT and roll < 0.2:
        return f"{count}{_SHORT[unit]}"
    if unit in _ABBREVIATED and roll < 0.35:
        ending = "s" if count > 1 and rng.random() < 0.7 else ""
        return f"{count}{rng.choice((' ', ' ', ''))}{_ABBREVIATED[unit]}{ending}"
    amount = _WORDS[count] if 0 < count <= 12 and roll > 0.88 else str(count)
    return f"{amount} {unit}{'s' if count > 1 else ''}"
