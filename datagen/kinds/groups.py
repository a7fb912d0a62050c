"""Owns questions about what there is: distinct values, lists of values, traces, and what runs at once.

Knows nothing of groups, conditions or time that are added. Use: `listing(teller)`.
"""

from datagen.columns import Column
from datagen.modifiers import Wants, modifiers
from datagen.teller import Teller
from datagen.words import plural, split_words

_NOT_THINGS = frozenset({"request", "span", "log", "event", "id", "call", "operation", "record", "error"})


def distinct(t: Teller) -> str | None:
    """`how many unique users …`."""
    column = t.pick_group(main_share=0.35, flags=False)
    if not column:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    return t.say("distinct_frame", **_nouns(t, column), M=modifiers(t, Wants(by=0.35)))


def entities(t: Teller) -> str | None:
    """`how many users …`: whatever a column names is counted once each."""
    ids = t.chance(0.6)
    column = t.pick(
        lambda c: (c.kind == "id") == ids and c.groupable and c.kind != "flag" and c.role != "parent"
    )
    noun = t.phrase(column) if column else None
    if not column or not noun or set(split_words(noun)) & _NOT_THINGS:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    return t.say("entities_frame", nouns=plural(noun), noun=noun, M=modifiers(t, Wants(by=0.35)))


def listing(t: Teller) -> str | None:
    """`which regions are there`: counts by the column."""
    column = t.pick_group(flags=False)
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return t.say("list_frame", **_nouns(t, column), M=modifiers(t, Wants()))


def traces(t: Teller) -> str | None:
    """`traces with errors`: the ids of traces, by their number of events."""
    column = t.role("trace")
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return t.say("trace_frame", M=modifiers(t, Wants(min_filters=1)))


def concurrency(t: Teller) -> str:
    """`concurrent requests …`."""
    t.draft.calculations.append(("CONCURRENCY", None))
    return t.say("concurrency_frame", M=modifiers(t, Wants(by=0.4)))


def _nouns(t: Teller, column: Column) -> dict[str, str]:
    return {"nouns": t.mention(column, many=True), "noun": t.mention(column), "exact": t.exact(column)}
