"""Sample when a question asks about: ranges, steps, absolute times and comparisons."""

from dataclasses import replace
from random import Random

from examples.honeycomb.datagen.people.meaning import Meaning

WINDOWS = (
    *(300, 600, 900, 900, 1200, 1800, 2700, 3600, 3600, 5400, 7200, 10_800, 14_400, 21_600, 28_800, 43_200),
    *(86_400, 86_400, 86_400, 172_800, 259_200, 432_000, 604_800, 604_800, 1_209_600, 1_814_400, 2_592_000),
)
STEPS = (5, 10, 15, 30, 60, 60, 120, 300, 300, 600, 900, 1800, 3600, 3600, 86_400)
_OFFSETS = (1800, 3600, 7200, 28_800, 86_400, 86_400, 604_800, 604_800, 2_419_200)
_DEFAULT = 7200
_FIRST_DAY, _DAYS, _DAY = 1_735_689_600, 730, 86_400  # 2025-01-01, two years


def with_time(rng: Random, meaning: Meaning) -> Meaning:
    """The meaning with a time range, a granularity, both, an absolute time or a comparison."""
    roll = rng.random()
    if roll < 0.13:
        return _absolute(rng, meaning)
    if roll < 0.18:
        near = rng.choice((600, 1800, 3600, 3600, 7200, 21_600, 86_400))
        return replace(meaning, window=near * rng.choice((2, 2, 3, 4)), until_ago=near)
    window = rng.choice(WINDOWS) if roll < 0.84 else None
    if 0.18 <= roll < 0.24:
        offset = rng.choice([o for o in _OFFSETS if o >= (window or _DEFAULT)] or [None])
        return replace(meaning, window=window, compare=offset)
    steps = [step for step in STEPS if (window or _DEFAULT) // 500 < step <= (window or _DEFAULT) // 10]
    step = rng.choice(steps) if roll > 0.56 and steps else None
    return replace(meaning, window=window, step=step)


def _absolute(rng: Random, meaning: Meaning) -> Meaning:
    """Whole days and minutes, so that they can be written as dates, or any second."""
    day = _FIRST_DAY + rng.randrange(_DAYS) * _DAY
    start = day + rng.choice((0, 0, 3600 * rng.randrange(24), 900 * rng.randrange(96), rng.randrange(_DAY)))
    if rng.random() < 0.3:
        return replace(meaning, start=start)
    lengths = (_DAY, _DAY, 7 * _DAY) if start == day else (1800, 3600, 7200, 14_400, rng.randint(600, _DAY))
    return replace(meaning, start=start, end=start + rng.choice(lengths))
