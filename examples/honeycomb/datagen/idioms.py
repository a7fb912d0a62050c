"""Generate conditions that do not name their column.

They are about errors, root spans, durations ("slower than 1s"), or values that determine their column. Each requires
that the dataset has the column that it refers to.
"""

from collections.abc import Callable

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.conditions import Condition
from examples.honeycomb.datagen.implied import adjective_column, error_filter, root_filter
from examples.honeycomb.datagen.quantities import duration
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.sample_values import Scalar, sample_value
from examples.honeycomb.datagen.words import split_words

Idiom = Callable[[QuestionBuilder], Condition | None]


def _errors_only(t: QuestionBuilder) -> Condition | None:
    found = error_filter(t)
    return Condition((found,), t.say("errors_only"), False) if found else None


def _root(t: QuestionBuilder) -> Condition | None:
    found = root_filter(t)
    return Condition((found,), t.say("root"), False) if found else None


def _of_role(role: str, section: str, op: str, value: Scalar | None = None) -> Idiom:
    """A condition on the column with this role."""

    def of_role(t: QuestionBuilder) -> Condition | None:
        column = t.role(role)
        return Condition((Filter(column.name, op, value),), t.say(section), False) if column else None

    return of_role


def _slow(t: QuestionBuilder) -> Condition | None:
    column = t.role("duration")
    if not column:
        return None
    section, op = t.rng.choice(
        (("slower", ">"), ("slower", ">"), ("slower", ">"), ("faster", "<"), ("slower_eq", ">="))
    )
    value = duration(t.rng, column.detail)
    return Condition((Filter(column.name, op, value.value),), t.say(section, t=guard(value.text)), False)


def _status(t: QuestionBuilder) -> Condition | None:
    column = t.role("status")
    if not column:
        return None
    roll = t.rng.random()
    if roll < 0.16:
        return Condition((Filter(column.name, ">=", 500),), t.say("status_5xx"), False)
    if roll < 0.34:
        section, low = t.rng.choice((("status_4xx", 400), ("status_2xx", 200)))
        pair = (Filter(column.name, ">=", low), Filter(column.name, "<", low + 100))
        return Condition(pair, t.say(section), False)
    section, op = ("status_not", "!=") if roll < 0.44 else ("status_is", "=")
    value = sample_value(t.rng, column)
    return Condition((Filter(column.name, op, value.value),), t.say(section, v=guard(value.text)), False)


def _by_value(role: str) -> Idiom:
    """A condition whose value alone determines the column: a method, service, region, environment, path or address."""

    def by_value(t: QuestionBuilder) -> Condition | None:
        column = t.role(role) or (_only(t, role) if role == "email" else None)
        if not column:
            return None
        value = sample_value(t.rng, column)
        if role == "service" and not any(character in value.text for character in ("-", "_")):
            return None  # a bare "cart" could be anything
        section = "path" if role == "route" else role
        return Condition((Filter(column.name, "=", value.value),), t.say(section, v=t.quote(value)), False)

    return by_value


def _only(t: QuestionBuilder, kind: str) -> Column | None:
    found = [c for c in t.columns.columns if c.kind == kind]
    return found[0] if len(found) == 1 else None


def _adjective(t: QuestionBuilder) -> Condition | None:
    """`that are cached`: a flag by the adjective in its name."""
    column = adjective_column(t)
    if not column:
        return None
    section, truth = ("flag_is", True) if t.chance(0.7) else ("flag_is_not", False)
    text = t.say(section, adj=split_words(column.name)[-1])
    return Condition((Filter(column.name, "=", truth),), text, False)


def _named_value(t: QuestionBuilder) -> Condition | None:
    """`for service cart`, `excluding region eu`: a noun and its value."""
    column = t.pick(lambda c: c.kind in {"enum", "id", "service", "region", "host", "env", "version", "email"})
    if not column:
        return None
    value = sample_value(t.rng, column)
    section, op = ("prep_ne", "!=") if t.chance(0.2) else ("prep_eq", "=")
    text = t.say(section, col=t.mention(column, exact_share=0.3), v=t.quote(value))
    return Condition((Filter(column.name, op, value.value),), text, False)


def _with_column(t: QuestionBuilder) -> Condition | None:
    """`with a user id`, `without a parent`: whether a column exists."""
    column = t.pick(lambda c: c.kind in {"id", "enum", "text", "email", "host", "version"}, main_share=0.2)
    if not column:
        return None
    section, op = t.rng.choice((("with_exists", "exists"), ("with_nexists", "does-not-exist")))
    return Condition((Filter(column.name, op),), t.say(section, col=t.mention(column, exact_share=0.3)), False)


IDIOMS: dict[str, tuple[Idiom, int]] = {
    "errors": (_errors_only, 7),
    "no errors": (_of_role("error", "no_errors", "=", False), 3),
    "root": (_root, 7),
    "non-root": (_of_role("parent", "nonroot", "exists"), 1),
    "exceptions": (_of_role("exception", "exceptions", "exists"), 2),
    "slow": (_slow, 9),
    "status": (_status, 9),
    "method": (_by_value("method"), 4),
    "service": (_by_value("service"), 6),
    "region": (_by_value("region"), 3),
    "env": (_by_value("env"), 3),
    "route": (_by_value("route"), 5),
    "email": (_by_value("email"), 2),
    "adjective": (_adjective, 4),
    "named value": (_named_value, 26),
    "with column": (_with_column, 6),
}


def idiom(t: QuestionBuilder) -> Condition | None:
    """A random idiom; None if this dataset does not allow it or its column is used already."""
    names = list(IDIOMS)
    name = t.rng.choices(names, [IDIOMS[n][1] for n in names])[0]
    condition = IDIOMS[name][0](t)
    if condition is None or any(f.column in t.draft.used for f in condition.filters):
        return None
    return condition
