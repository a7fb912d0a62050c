"""Filters for words that do not name a column: errors, root spans, `POST requests`."""

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.sample_values import Scalar, sample_value
from examples.honeycomb.datagen.words import split_words

_PREMODIFIED = frozenset({"request", "event", "span", "call"})
_ADJECTIVE_ENDS = frozenset({"ed", "ic", "ve"})


def error_filter(t: QuestionBuilder) -> Filter | None:
    """The filter for "errors": the error flag, or a status of 500 or more; None if the dataset has neither."""
    if flag := t.role("error"):
        return Filter(flag.name, "=", True)
    if status := t.role("status"):
        return Filter(status.name, ">=", 500)
    return None


def root_filter(t: QuestionBuilder) -> Filter | None:
    """The filter for spans without a parent; None if the dataset has no such column."""
    parent = t.role("parent")
    return Filter(parent.name, "does-not-exist") if parent else None


def adjective_column(t: QuestionBuilder) -> Column | None:
    """A flag whose last word is an adjective and refers to no other column."""
    column = t.pick(lambda c: c.kind == "flag" and c.role is None and not c.exact_only)
    word = split_words(column.name)[-1] if column else ""
    if not column or word[-2:] not in _ADJECTIVE_ENDS or t.columns.resolve(word) != column.name:
        return None
    return column


def premodify(t: QuestionBuilder) -> None:
    """Sometimes add a filter as a word before the noun: `POST requests`, `cached requests`."""
    if t.event not in _PREMODIFIED or not t.chance(0.2):
        return
    role = t.rng.choice(("method", "method", "method", "flag", "flag", "service", "env"))
    column = adjective_column(t) if role == "flag" else t.role(role)
    if not column or column.name in t.draft.used:
        return
    value, word = _value(t, column)
    if role == "service" and "-" not in word:
        return  # "cart requests" would be ambiguous
    t.draft.filters.append(Filter(column.name, "=", value))
    t.before = word


def _value(t: QuestionBuilder, column: Column) -> tuple[Scalar, str]:
    if column.kind == "flag":
        return True, split_words(column.name)[-1]
    sample = sample_value(t.rng, column)
    return sample.value, guard(sample.text)
