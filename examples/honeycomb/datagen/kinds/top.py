"""Questions that rank groups by count, errors, statuses or an aggregate."""

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.implied import error_filter
from examples.honeycomb.datagen.kinds.aggregates import aggregate_phrase, numeric_column
from examples.honeycomb.datagen.kinds.counts import status_words
from examples.honeycomb.datagen.modifiers import ModifierChances, modifiers
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard

GROUPED = ModifierChances(by=0.05, limit=0, order=0)
_LIMITS = (3, 3, 5, 5, 5, 10, 10, 10, 10, 15, 20, 20, 25, 50, 100)
_WORDS = {3: "three", 5: "five", 10: "ten"}


def group(t: QuestionBuilder) -> tuple[Column, dict[str, str]] | None:
    """A column to rank by, which is added to the draft's breakdowns, and the words for it."""
    column = t.pick_group(main_share=0.5, flags=False)
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return column, {"nouns": t.mention(column, many=True), "noun": t.mention(column)}


def limited(t: QuestionBuilder, share: float) -> dict[str, str]:
    """With probability `share`, a limit for templates with a number of groups; it is added to the draft."""
    if not t.chance(share):
        return {}
    t.draft.limit = t.rng.choice(_LIMITS)
    text = _WORDS[t.draft.limit] if t.draft.limit in _WORDS and t.chance(0.12) else str(t.draft.limit)
    return {"n": guard(text)}


def by_count(t: QuestionBuilder) -> str | None:
    """`top 10 endpoints`, `busiest services`, `rarest regions`."""
    found = group(t)
    if not found:
        return None
    n = limited(t, 0.55)
    t.draft.ascending = t.chance(0.22)
    sections = {(True, True): "least_n", (True, False): "least_count", (False, True): "top_count"}
    section = sections.get((t.draft.ascending, bool(n)), "most_count")
    return t.say(f"{section}_frame", **found[1], **n, M=modifiers(t, GROUPED))


def by_errors(t: QuestionBuilder) -> str | None:
    """`which services have the most errors`; of routes, a status above 400 if no other condition is about it."""
    errors = error_filter(t)
    found = group(t)
    if not errors or not found or errors.column == found[0].name:
        return None
    t.draft.filters.append(errors)
    n = limited(t, 0.35)
    # The error flag is among the filters until now, so that no other condition is about it.
    sentence = t.say(f"top_errors{'_n' if n else ''}_frame", **found[1], **n, M=modifiers(t, GROUPED))
    status = t.role("status")
    if found[0].role == "route" and status and (status.name == errors.column or status.name not in t.draft.used):
        t.draft.filters[0] = Filter(status.name, ">", 400)
    return sentence


def by_status(t: QuestionBuilder) -> str | None:
    """`endpoints returning 500s`."""
    words = status_words(t)
    found = group(t)
    if not words or not found:
        return None
    n = limited(t, 0.35)
    return t.say(f"top_status{'_n' if n else ''}_frame", **found[1], **n, code=words, M=modifiers(t, GROUPED))


def by_aggregate(t: QuestionBuilder) -> str | None:
    """`endpoints with the highest p99 latency`."""
    found = group(t)
    if not found:
        return None
    t.draft.ascending = t.chance(0.2)
    if t.chance(0.3):
        return _by_extreme(t, found[1])
    phrase = aggregate_phrase(t, ranked=True)
    if not phrase:
        return None
    n = limited(t, 0.4)
    section = f"{'low' if t.draft.ascending else 'high'}_agg{'_n' if n else ''}_frame"
    return t.say(section, **found[1], **n, agg=phrase, M=modifiers(t, GROUPED))


def _by_extreme(t: QuestionBuilder, words: dict[str, str]) -> str | None:
    """`endpoints with the highest latency`, by the maximum, or the lowest, by the minimum."""
    column = numeric_column(t)
    if not column:
        return None
    t.draft.calculations.append(("MIN" if t.draft.ascending else "MAX", column.name))
    n = limited(t, 0.4)
    section = f"{'lowest' if t.draft.ascending else 'highest'}{'_n' if n else ''}_frame"
    return t.say(section, **words, **n, num=t.mention(column), M=modifiers(t, GROUPED))
