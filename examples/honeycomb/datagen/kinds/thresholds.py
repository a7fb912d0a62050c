"""Questions that keep only groups above or below a threshold."""

from examples.honeycomb.datagen.conditions import amount
from examples.honeycomb.datagen.implied import error_filter
from examples.honeycomb.datagen.kinds.aggregates import aggregate_phrase
from examples.honeycomb.datagen.kinds.top import GROUPED, group
from examples.honeycomb.datagen.modifiers import modifiers
from examples.honeycomb.datagen.quantities import number
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard

_SIGNS = (("gt", ">"), ("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
_COUNTS = (2, 3, 5, 10, 20, 50, 100, 100, 200, 500, 1000, 1000, 5000, 10_000)


def by_count(t: QuestionBuilder) -> str | None:
    """`users with more than 100 requests`."""
    found = group(t)
    if not found:
        return None
    return t.say("having_count_frame", **found[1], **_threshold(t), M=modifiers(t, GROUPED))


def by_errors(t: QuestionBuilder) -> str | None:
    """`services with at least 10 errors`."""
    errors = error_filter(t)
    found = group(t)
    if not errors or not found or errors.column == found[0].name:
        return None
    t.draft.filters.append(errors)
    return t.say("having_errors_frame", **found[1], **_threshold(t), M=modifiers(t, GROUPED))


def _threshold(t: QuestionBuilder) -> dict[str, str]:
    word, sign = t.rng.choice(_SIGNS)
    value = t.rng.choice((*_COUNTS, t.rng.randint(2, 999)))
    t.draft.havings.append(("COUNT", None, sign, value))
    return {"cmp": t.say(word), "sym": sign, "n": guard(number(t.rng, value))}


def by_aggregate(t: QuestionBuilder) -> str | None:
    """`endpoints where p99 latency is over 1s`."""
    found = group(t)
    phrase = aggregate_phrase(t, ranked=True) if found else None
    if not found or not phrase:
        return None
    op, name = t.draft.calculations[0]
    column = next(c for c in t.columns.columns if c.name == name)
    word, sign = t.rng.choice(_SIGNS)
    value = amount(t, column)
    t.draft.havings.append((op, name, sign, float(value.value)))
    slots = {"agg": phrase, "agg2": phrase, "cmp": t.say(word), "sym": sign, "x": value.text}
    return t.say("having_agg_frame", **found[1], **slots, M=modifiers(t, GROUPED))
