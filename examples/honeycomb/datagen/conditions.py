"""Generate a single condition: a filter and the words for it.

A condition is either a clause, which follows "where", or a phrase on its own ("for service cart").
"""

from dataclasses import dataclass

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.quantities import duration, number, size
from examples.honeycomb.datagen.query_draft import Filter
from examples.honeycomb.datagen.question_builder import QuestionBuilder, guard
from examples.honeycomb.datagen.sample_values import Value, number_text, parse_scalar, sample_value

_COMPARISONS = (("gt", ">"), ("gt", ">"), ("lt", "<"), ("ge", ">="), ("le", "<="))
_TEXT_OPS = {
    ("contains", "contains"): 10,
    ("ncontains", "does-not-contain"): 3,
    ("starts", "starts-with"): 5,
    ("nstarts", "does-not-start-with"): 1,
    ("ends", "ends-with"): 2,
    ("nends", "does-not-end-with"): 1,
}


@dataclass(frozen=True)
class Condition:
    """One or more filters and the text that expresses them; `is_clause` tells a clause from a phrase."""

    filters: tuple[Filter, ...]
    text: str
    is_clause: bool


def clause(t: QuestionBuilder, column: Column) -> Condition:
    """A random condition on this column, as a clause."""
    col = t.mention(column, exact_share=0.5)
    roll = t.rng.random()
    if roll < 0.09:
        section, op = t.rng.choice((("exists", "exists"), ("nexists", "does-not-exist")))
        return Condition((Filter(column.name, op),), t.say(section, col=col), True)
    if column.kind == "flag":
        return _flag(t, column, col)
    if column.numeric or (column.kind == "status" and roll < 0.5):
        return _numeric(t, column, col)
    if roll < (0.14 if column.kind == "id" else 0.27) and column.kind != "text":
        return _several(t, column, col)
    if column.kind in {"text", "path", "url"} or (column.kind in {"op", "host", "email", "service"} and roll < 0.5):
        return _textual(t, column, col)
    return _equal(t, column, col)


def _flag(t: QuestionBuilder, column: Column, col: str) -> Condition:
    truth = t.chance(0.7)
    text = t.say("flag_true" if truth else "flag_false", col=col)
    return Condition((Filter(column.name, "=", truth),), text, True)


def _equal(t: QuestionBuilder, column: Column, col: str) -> Condition:
    value = sample_value(t.rng, column)
    section, op = ("ne", "!=") if t.chance(0.2) else ("eq", "=")
    return Condition((Filter(column.name, op, value.value),), t.say(section, col=col, v=t.quote(value)), True)


def _several(t: QuestionBuilder, column: Column, col: str) -> Condition:
    values: dict[str, Value] = {}
    for _ in range(t.rng.choice((2, 2, 2, 3, 3, 4))):
        value = sample_value(t.rng, column)
        values.setdefault(value.text, value)
    if len(values) < 2:
        return _equal(t, column, col)
    quote = t.chance(0.3)
    words = [guard(f"'{v.text}'") if quote or " " in v.text else guard(v.text) for v in values.values()]
    slots = {
        "col": col,
        "vs_comma": ", ".join(words),
        "vs_or": t.join(words, "or"),
        "vs_nor": t.join(words, "nor"),
    }
    section, op = ("notin", "not-in") if t.chance(0.25) else ("in", "in")
    listed = [v.value for v in values.values()]
    return Condition((Filter(column.name, op, listed),), t.say(section, **slots), True)


def _textual(t: QuestionBuilder, column: Column, col: str) -> Condition:
    section, op = t.rng.choices(tuple(_TEXT_OPS), tuple(_TEXT_OPS.values()))[0]
    text = sample_value(t.rng, column).text
    if column.kind not in {"text", "path", "url"} and len(text) > 4:
        parts = text.replace("_", "-").split("-")
        text = parts[-1] if section in {"ends", "nends"} else parts[0]
    value = Value(text, text)
    return Condition((Filter(column.name, op, text),), t.say(section, col=col, v=t.quote(value)), True)


def amount(t: QuestionBuilder, column: Column, *, bare: bool = False) -> Value:
    """A threshold for a numeric column, with a unit where people would type one unless `bare`."""
    if column.kind == "dur" and not bare and t.chance(0.7):
        value = duration(t.rng, column.detail or "ms")
        return Value(value.value, guard(value.text))
    if column.kind == "bytes" and not bare and t.chance(0.5):
        value = size(t.rng, column.detail or "b")
        return Value(value.value, guard(value.text))
    kind = column.kind
    plain = sample_value(t.rng, column).value if kind == "status" else parse_scalar(number_text(t.rng, kind))
    assert isinstance(plain, int | float)
    percent = "%" if kind == "pct" and t.chance(0.4) else ""
    return Value(plain, guard(number(t.rng, plain) + percent))


def _numeric(t: QuestionBuilder, column: Column, col: str) -> Condition:
    roll = t.rng.random()
    if roll < 0.12:
        low, high = sorted((amount(t, column, bare=True), amount(t, column, bare=True)), key=lambda v: v.value)
        if low.value != high.value:
            pair = (Filter(column.name, ">=", low.value), Filter(column.name, "<=", high.value))
            return Condition(pair, t.say("between_clause", col=col, a=low.text, b=high.text), True)
    if roll < 0.3 and column.kind in {"num", "count", "status"}:
        value = amount(t, column, bare=True)
        section, op = ("ne", "!=") if t.chance(0.25) else ("eq", "=")
        return Condition((Filter(column.name, op, value.value),), t.say(section, col=col, v=value.text), True)
    word, op = t.rng.choice(_COMPARISONS)
    value = amount(t, column)
    return Condition((Filter(column.name, op, value.value),), t.say(f"{word}_clause", col=col, v=value.text), True)
