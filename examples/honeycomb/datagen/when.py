"""Generate the parts of a question about time: ranges, granularity and comparison."""

from examples.honeycomb.datagen.quantities import span, span_text
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.sample_values import random_second

_HOUR, _DAY, _WEEK = 3600, 86_400, 604_800
_CALENDAR = {"today": _DAY, "week": _WEEK, "month": 2_592_000}
_COMPARISONS = {"compare_day": _DAY, "compare_week": _WEEK, "compare_hour": _HOUR, "compare_month": 2_419_200}
_SECONDS = {"second": 1, "minute": 60, "hour": _HOUR, "day": _DAY}
_STEPS = (
    (1, "minute"),
    (5, "minute"),
    (10, "minute"),
    (15, "minute"),
    (1, "hour"),
    (30, "second"),
    (1, "day"),
)


def time_words(t: QuestionBuilder) -> str:
    """`in the last 5 minutes`; sometimes it is put at the start of the sentence instead."""
    t.draft.features.add("time")
    roll = t.rng.random()
    if roll < 0.04:
        return _absolute(t)
    if roll < 0.12:
        section = t.rng.choice(("today", "today", "week", "month"))
        t.draft.times["time_range"] = _CALENDAR[section]
        return t.say(section)
    seconds, text, counted = span(t.rng)
    t.draft.times["time_range"] = seconds
    if t.chance(0.12):
        t.front = t.say("time_front", t=text, ta=counted)
        return ""
    return t.say("time", t=text, ta=counted)


def _absolute(t: QuestionBuilder) -> str:
    start = random_second(t.rng)
    t.draft.times["start_time"] = start
    if t.chance(0.35):
        return t.say("since_time", a=guard(str(start)))
    end = start + t.rng.choice((600, 1800, 3600, 7200, 86_400, t.rng.randint(60, 90_000)))
    t.draft.times["end_time"] = end
    return t.say("between_time", a=guard(str(start)), b=guard(str(end)))


def granularity_words(t: QuestionBuilder) -> str:
    """`in 5 minute buckets`: at most a tenth of the range, as in the canonical query."""
    finest = t.draft.time_range // 10
    fitting = [(count, unit) for count, unit in _STEPS if count * _SECONDS[unit] <= finest]
    if not fitting or "start_time" in t.draft.times:
        return ""
    count, unit = t.rng.choice(fitting)
    t.draft.times["granularity"] = count * _SECONDS[unit]
    t.draft.features.add("granularity")
    text = f"1 {unit}" if count == 1 else span_text(t.rng, count, unit)
    return t.say("granularity", t=text.removesuffix("s") if text[-2].isalpha() else text)


def comparison_words(t: QuestionBuilder) -> str:
    """`compared to yesterday`: an offset of at least the time range."""
    fitting = [section for section, offset in _COMPARISONS.items() if offset >= t.draft.time_range]
    if not fitting or "start_time" in t.draft.times:
        return ""
    section = t.rng.choice(fitting)
    t.draft.times["compare_time_offset_seconds"] = _COMPARISONS[section]
    t.draft.features.add("compare")
    return t.say(section)
