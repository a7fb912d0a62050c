"""Owns what words mean without naming a column: errors, root spans, `POST requests`.

Knows not where the words stand in a question. Use: `error_filter(teller)`.
"""

from datagen.columns import Column
from datagen.draft import Filter
from datagen.teller import Teller, guard
from datagen.values import Scalar, sample_value
from datagen.words import split_words

_PREMODIFIED = frozenset({"request", "event", "span", "call"})
_ADJECTIVE_ENDS = frozenset({"ed", "ic", "ve"})


def error_filter(t: Teller) -> Filter | None:
    """What "errors" means here: the error flag is true, else the status is 500 or more."""
    if flag := t.role("error"):
        return Filter(flag.name, "=", True)
    if status := t.role("status"):
        return Filter(status.name, ">=", 500)
    return None


def root_filter(t: Teller) -> Filter | None:
    """Spans without a parent."""
    parent = t.role("parent")
    return Filter(parent.name, "does-not-exist") if parent else None


def adjective_column(t: Teller) -> Column | None:
    """A flag whose last word is an adjective and means no other column."""
    column = t.pick(lambda c: c.kind == "flag" and c.role is None and not c.exact_only)
    word = split_words(column.name)[-1] if column else ""
    if not column or word[-2:] not in _ADJECTIVE_ENDS or t.columns.resolve(word) != column.name:
        return None
    return column


def premodify(t: Teller) -> None:
    """Now and then a word before the events: `POST requests`, `cached requests`."""
    if t.event not in _PREMODIFIED or not t.chance(0.2):
        return
    role = t.rng.choice(("method", "method", "method", "flag", "flag", "service", "env"))
    column = adjective_column(t) if role == "flag" else t.role(role)
    if not column or column.name in t.draft.used:
        return
    value, word = _value(t, column)
    if role == "service" and "-" not in word:
        return  # a bare "cart requests" could mean anything
    t.draft.filters.append(Filter(column.name, "=", value))
    t.before = word


def _value(t: Teller, column: Column) -> tuple[Scalar, str]:
    if column.kind == "flag":
        return True, split_words(column.name)[-1]
    sample = sample_value(t.rng, column)
    return sample.value, guard(sample.text)
