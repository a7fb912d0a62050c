"""Questions that count events: all, by conditions, errors, root spans, statuses or exceptions."""

from examples.honeycomb.datagen.implied import error_filter, premodify, root_filter
from examples.honeycomb.datagen.modifiers import ModifierChances, modifiers
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.sample_values import sample_value

_CODES = ("5xx", "5xx", "4xx", "500", "500", "404", "404", "503", "502", "504", "401", "403", "429")


def count(t: QuestionBuilder) -> str:
    """`how many requests …`."""
    premodify(t)
    return t.say("count_frame", M=modifiers(t, ModifierChances(by=0.45)))


def events(t: QuestionBuilder) -> str:
    """`requests where …`: a count of events with conditions."""
    premodify(t)
    return t.say("events_frame", M=modifiers(t, ModifierChances(by=0.12, min_filters=0 if t.before else 1)))


def errors(t: QuestionBuilder) -> str | None:
    """`errors …`."""
    found = error_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    premodify(t)
    return t.say("errors_frame", M=modifiers(t, ModifierChances(by=0.45)))


def error_rate(t: QuestionBuilder) -> str | None:
    """`error rate …`: counts grouped by whether there is an error."""
    found = error_filter(t)
    if not found:
        return None
    words = modifiers(t, ModifierChances(by=0.5, limit=0, order=0))
    if found.column in t.draft.used:
        return None
    t.draft.breakdowns.append(found.column)
    return t.say("error_rate_frame", M=words)


def root(t: QuestionBuilder) -> str | None:
    """`root spans …`."""
    found = root_filter(t)
    if not found:
        return None
    t.draft.filters.append(found)
    return t.say("root_frame", M=modifiers(t, ModifierChances(by=0.4)))


def statuses(t: QuestionBuilder) -> str | None:
    """`404s …`, `5xx errors …`."""
    words = status_words(t)
    return words and t.say("status_frame", code=words, M=modifiers(t, ModifierChances(by=0.45)))


def status_words(t: QuestionBuilder) -> str | None:
    """Words for a status or a class of them, whose filter is added to the draft."""
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


def exceptions(t: QuestionBuilder) -> str | None:
    """`exceptions by service`."""
    column = t.role("exception")
    if not column:
        return None
    t.draft.filters.append(Filter(column.name, "exists"))
    return t.say("exceptions_frame", M=modifiers(t, ModifierChances(by=0.5)))


def called(t: QuestionBuilder) -> str | None:
    """`how many times was /login called`."""
    column = t.role("route")
    if not column:
        return None
    value = sample_value(t.rng, column)
    t.draft.filters.append(Filter(column.name, "=", value.value))
    return t.say("called_frame", path=t.quote(value), M=modifiers(t, ModifierChances(by=0.3)))
