"""Sample one condition: a column, an operator that suits its type, and values."""

from random import Random

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.people.meaning import Clause
from examples.honeycomb.datagen.people.value_shapes import numeric_value, shaped_value
from examples.honeycomb.datagen.sample_values import Value

JOINED = frozenset({"between", "in", "not-in"})  # their words already have "and", "or" or commas
_PART_OPS = (
    *("contains", "contains", "contains", "starts-with", "starts-with", "ends-with"),
    *("does-not-contain", "does-not-start-with", "does-not-end-with"),
)
_NUMBERED = frozenset({"status", "code"})  # values are numbers, but only their order or equality means something
_STRINGS = frozenset({"text", "url", "enum", "path", "host", "service", "op", "email", "version", "id"})
_COPIED = frozenset({"id", "email", "ip", "url", "version", "text", "host"})


def clause(rng: Random, columns: list[Column], flavour: str) -> Clause | None:
    """A random condition of this flavour (see `question_kinds.Kind`); None if no column fits."""
    pool = [c for c in columns if c.kind != "ts"]
    if flavour == "text":
        pool = [c for c in pool if c.kind in _STRINGS and not _has_numbers(c)]
        return _part_of_text(rng, rng.choice(pool), pool) if pool else None
    if flavour == "ids":
        pool = [c for c in pool if c.kind in _COPIED]
        return _copied(rng, rng.choice(pool)) if pool else None
    if flavour == "logic":
        pool = [c for c in pool if not c.numeric or rng.random() < 0.25]
        return _negated_or_listed(rng, rng.choice(pool)) if pool else None
    return _any(rng, rng.choice(pool)) if pool else None


def _has_numbers(column: Column) -> bool:
    return column.kind == "id" and column.detail in {"", "number", "num"}


def _any(rng: Random, column: Column) -> Clause:
    roll = rng.random()
    if column.kind == "opaque" or (roll < 0.09 and column.kind != "flag"):
        return Clause(column, rng.choice(("exists", "does-not-exist")))
    if column.kind == "flag":
        return Clause(column, "=", (Value(rng.random() < 0.7, ""),))
    if column.numeric:
        return _compared(rng, column, roll)
    if column.kind in _NUMBERED and roll < 0.4:
        return Clause(column, rng.choice((">=", "<", ">", "!=")), (shaped_value(rng, column),))
    if roll < 0.22 and column.kind != "text":
        return _listed(rng, column)
    if column.kind == "text" or (roll < 0.45 and column.kind in _STRINGS and not _has_numbers(column)):
        return _part_of_text(rng, column, [])
    return Clause(column, "!=" if rng.random() < 0.2 else "=", (shaped_value(rng, column),))


def _compared(rng: Random, column: Column, roll: float) -> Clause:
    low, high = sorted((numeric_value(rng, column), numeric_value(rng, column)), key=lambda v: float(str(v.value)))
    if roll < 0.22 and low.value != high.value:
        return Clause(column, "between", (low, high))
    plain = ("=", "!=") if column.kind in {"num", "count"} else ()
    return Clause(column, rng.choice((">", ">", ">", ">=", ">=", "<", "<", "<=", *plain)), (low,))


def _negated_or_listed(rng: Random, column: Column) -> Clause:
    roll = rng.random()
    if column.kind == "flag":
        return Clause(column, "=", (Value(roll < 0.3, ""),))
    if column.kind == "opaque" or roll < 0.42:
        return Clause(column, "exists" if rng.random() < 0.4 else "does-not-exist")
    if column.numeric:
        return _compared(rng, column, rng.random())
    if column.kind == "text" or (roll < 0.5 and column.kind in _STRINGS and not _has_numbers(column)):
        negative = rng.choice(("does-not-contain", "does-not-contain", "does-not-start-with", "does-not-end-with"))
        return _part_of_text(rng, column, [], negative)
    if roll < 0.78:
        return _listed(rng, column)
    return Clause(column, "!=" if rng.random() < 0.75 else "=", (shaped_value(rng, column),))


def _listed(rng: Random, column: Column) -> Clause:
    values = {v.text: v for v in (shaped_value(rng, column) for _ in range(rng.choice((2, 2, 2, 3, 3, 4))))}
    if len(values) > 1:
        return Clause(column, "in" if rng.random() < 0.65 else "not-in", tuple(values.values()))
    return Clause(column, "=", tuple(values.values()))


def _copied(rng: Random, column: Column) -> Clause:
    """Mostly the whole value; ids are seldom listed or excluded."""
    roll = rng.random()
    if column.kind == "text" or (roll < 0.2 and not _has_numbers(column)):
        return _part_of_text(rng, column, [])
    if roll < 0.3:
        return _listed(rng, column)
    return Clause(column, "!=" if roll < 0.38 else "=", (shaped_value(rng, column),))


def _part_of_text(rng: Random, column: Column, others: list[Column], op: str | None = None) -> Clause:
    """A string operator; sometimes with a value that is common in another column, so that the name must decide."""
    op = op or rng.choice(_PART_OPS)
    source = rng.choice(others) if others and rng.random() < 0.3 else column
    text = shaped_value(rng, source).text
    part = text if source.kind == "text" else _part(rng, text, op)
    return Clause(column, op, (Value(part, part),))


def _part(rng: Random, text: str, op: str) -> str:
    """The beginning, the end or a middle part of a value, cut at a mark where it has one."""
    if "start" in op:
        cut = max(text.find(mark, 2) for mark in "-_/.:@") + 1
        part = text[: cut or min(len(text), 4)]
        return (part.rstrip("-_/.:@ ") or part) if rng.random() < 0.3 else part
    if "end" in op:
        cut = max(text.rfind(mark) for mark in "-_/.:@")
        return text[cut if 0 < cut < len(text) - 1 else max(0, len(text) - 4) :].strip()
    words = [word for word in text.replace("/", " ").replace("-", " ").replace("_", " ").split() if len(word) > 2]
    return rng.choice(words) if words and rng.random() < 0.7 else text
