"""Questions about distinct values, lists of values, traces, and concurrency."""

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.modifiers import ModifierChances, modifiers
from examples.honeycomb.datagen.question_builder import QuestionBuilder
from examples.honeycomb.datagen.words import plural, split_words

_NOT_THINGS = frozenset({"request", "span", "log", "event", "id", "call", "operation", "record", "error"})


def distinct(t: QuestionBuilder) -> str | None:
    """`how many unique users …`."""
    column = t.pick_group(main_share=0.35, flags=False)
    if not column:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    return t.say("distinct_frame", **_nouns(t, column), M=modifiers(t, ModifierChances(by=0.35)))


def entities(t: QuestionBuilder) -> str | None:
    """`how many users …`: the number of distinct values of a column."""
    ids = t.chance(0.6)
    column = t.pick(lambda c: (c.kind == "id") == ids and c.groupable and c.kind != "flag" and c.role != "parent")
    noun = t.phrase(column) if column else None
    if not column or not noun or set(split_words(noun)) & _NOT_THINGS:
        return None
    t.draft.calculations.append(("COUNT_DISTINCT", column.name))
    return t.say("entities_frame", nouns=plural(noun), noun=noun, M=modifiers(t, ModifierChances(by=0.35)))


def listing(t: QuestionBuilder) -> str | None:
    """`which regions are there`: counts grouped by the column."""
    column = t.pick_group(flags=False)
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return t.say("list_frame", **_nouns(t, column), M=modifiers(t, ModifierChances()))


def traces(t: QuestionBuilder) -> str | None:
    """`traces with errors`: counts grouped by trace id."""
    column = t.role("trace")
    if not column:
        return None
    t.draft.breakdowns.append(column.name)
    return t.say("trace_frame", M=modifiers(t, ModifierChances(min_filters=1)))


def concurrency(t: QuestionBuilder) -> str:
    """`concurrent requests …`."""
    t.draft.calculations.append(("CONCURRENCY", None))
    return t.say("concurrency_frame", M=modifiers(t, ModifierChances(by=0.4)))


def _nouns(t: QuestionBuilder, column: Column) -> dict[str, str]:
    return {"nouns": t.mention(column, many=True), "noun": t.mention(column), "exact": t.exact(column)}
