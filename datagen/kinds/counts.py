"""Owns questions that count events: all, by conditions, errors, root spans, statuses, exceptions.

Knows nothing of groups, conditions or time that are added. Use: `errors(teller)`.
"""

from datagen.draft import Filter
from datagen.implied import error_filter, premodify, root_filter
from datagen.modifiers import Wants, modifiers
from datagen.teller import Teller, guard
from datagen.values import sample_value

_CODES = ("5xx", "5xx", "4xx", "500", "500", "404", "404", "503", "502", "504", "401", "403", "429")


def count(t: Teller) -> str:
    """`how many requests …`."""
    premodify(t)
    return t.say("count_frame", M=modifiers(t, Wants(by=0.45)))


def events(t: Teller) -> str:
    """`requests where …`: the same count, asked by its conditions."""
    premodify(t)
    return t.say("events_frame", M=modifiers(t, Wants(by=0.12, min_filters=0 if t.before else 1)))


def errors(t: Teller) -> str | None:
    """`errors …`."""
    found = error_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    premodify(t)
    return t.say("errors_frame", M=modifiers(t, Wants(by=0.45)))


def error_rate(t: Teller) -> str | None:
    """`error rate …`: counts with and without errors side by side."""
    found = error_filter(t)
    if not found:
        return None
    words = modifiers(t, Wants(by=0.5, limit=0, order=0))
    if found.column in t.draft.used:
        return None
    t.draft.breakdowns.append(found.column)
    return t.say("error_rate_frame", M=words)


def root(t: Teller) -> str | None:
    """`root spans …`."""
    found = root_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    return t.say("root_frame", M=modifiers(t, Wants(by=0.4)))


def statuses(t: Teller) -> str | None:
    """`404s …`, `5xx errors …`."""
    words = status_words(t)
    return words and t.say("status_frame", code=words, M=modifiers(t, Wants(by=0.45)))


def status_words(t: Teller) -> str | None:
    """A status or a class of them: puts the filter into the draft."""
    column = t.role("status")
    if not column:
        return None
    code = t.rng.choice(_CODES)
    if code == "4xx":
        t.draft.filters += [Filter(column.name, ">=", 400), Filter(column.name, "<", 500)]
    elif code == "5xx":
        t.draft.filters.append(Filter(column.name, ">=", 500))
    else:
        t.draft.filters.append(Filter(column.name, "=", int(code)))
    return guard(code)


def exceptions(t: Teller) -> str | None:
    """`exceptions by service`."""
    column = t.role("exception")
    if not column:
        return None
    t.draft.filters.append(Filter(column.name, "exists"))
    return t.say("exceptions_frame", M=modifiers(t, Wants(by=0.5)))


def called(t: Teller) -> str | None:
    """`how many times was /login called`."""
    column = t.role("route")
    if not column:
        return None
    value = sample_value(t.rng, column)
    t.draft.filters.append(Filter(column.name, "=", value.value))
    return t.say("called_frame", path=t.quote(value), M=modifiers(t, Wants(by=0.3)))
