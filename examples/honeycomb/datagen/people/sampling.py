"""Sample what a question of one kind asks."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.people.clause_sampling import JOINED, clause
from examples.honeycomb.datagen.people.meaning import Meaning
from examples.honeycomb.datagen.people.moments import WINDOWS, with_time
from examples.honeycomb.datagen.people.question_kinds import Kind
from examples.honeycomb.datagen.people.value_shapes import numeric_value

_AGGREGATES = (
    "AVG",
    "AVG",
    "SUM",
    "SUM",
    "SUM",
    "MAX",
    "MIN",
    "P50",
    "P90",
    "P95",
    "P95",
    "P99",
    "P99",
    "P75",
    "HEATMAP",
)
_SUMMABLE = frozenset({"count", "bytes", "money"})
_DISTINCT = frozenset({"id", "enum", "email", "ip", "host", "path", "url", "service", "op"})
_MANY = frozenset({"id", "email", "ip", "url"})  # kinds with so many values that few people group by them


def sample_meaning(rng: Random, columns: ColumnSet, kind: Kind) -> Meaning:
    """A random meaning of this kind; many have no condition, no group or no order."""
    usable = [c for c in columns.columns if c.kind != "opaque" or rng.random() < 0.06]
    meaning = Meaning(calculations=_calculations(rng, usable, kind))
    taken = {c.name for _, c in meaning.calculations if c}
    groups = _groups(rng, usable, taken)
    if groups and rng.random() < kind.groups:
        count = min(len(groups), rng.choices((1, 2, 3), (80, 18, 2))[0])
        meaning = replace(meaning, groups=tuple(rng.sample(groups, count)))
    meaning = _conditions(rng, meaning, usable, kind)
    if meaning.groups and meaning.calculations[0][0] != "HEATMAP":
        meaning = _ranking(rng, meaning, kind)
    return with_time(rng, meaning) if rng.random() < kind.timed else meaning


def _conditions(rng: Random, meaning: Meaning, columns: list[Column], kind: Kind) -> Meaning:
    """The meaning with conditions; those of an "or" have no lists, whose words have an "or" of their own."""
    count = rng.choices((0, 1, 2, 3), kind.conditions)[0]
    any_of = count > 0 and rng.random() < kind.either
    flavour = "any" if any_of and rng.random() < 0.6 else kind.flavour
    for _ in range(max(count, 2) if any_of else count):
        more = with_clause(rng, meaning, columns, flavour)
        if not any_of or more.clauses[-1:] == meaning.clauses[-1:] or more.clauses[-1].op not in JOINED:
            meaning = more
    return replace(meaning, any_of=any_of and len(meaning.clauses) > 1)


def one_more(rng: Random, columns: ColumnSet, meaning: Meaning) -> Meaning | None:
    """The meaning with exactly one thing more; None if nothing fits."""
    usable = [c for c in columns.columns if c.kind != "opaque"]
    choices: list[Callable[[], Meaning]] = []
    if not meaning.any_of:
        choices += [lambda: with_clause(rng, meaning, usable)] * 2
    if not meaning.window and not meaning.start and not meaning.compare and not meaning.step:
        choices.append(lambda: replace(meaning, window=rng.choice([w for w in WINDOWS if w != 7200])))
    used = {c.column.name for c in meaning.clauses} | {c.name for _, c in meaning.calculations if c}
    groups = _groups(rng, usable, used)
    if not meaning.groups and groups:
        choices.append(lambda: replace(meaning, groups=(rng.choice(groups),)))
    more = rng.choice(choices)() if choices else meaning
    return more if more != meaning else None


def with_clause(rng: Random, meaning: Meaning, columns: list[Column], flavour: str = "any") -> Meaning:
    """The meaning with one more condition, on a column that it does not use yet."""
    used = {c.name for c in meaning.groups} | {c.column.name for c in meaning.clauses}
    used |= {c.name for _, c in meaning.calculations if c}
    made = clause(rng, [c for c in columns if c.name not in used], flavour)
    return replace(meaning, clauses=(*meaning.clauses, made)) if made else meaning


def _groups(rng: Random, columns: list[Column], taken: set[str]) -> list[Column]:
    common = dict.fromkeys((*_MANY, "flag"), 0.35)
    return [c for c in columns if c.groupable and c.name not in taken and rng.random() < common.get(c.kind, 1.0)]


def _calculations(rng: Random, columns: list[Column], kind: Kind) -> tuple[tuple[str, Column | None], ...]:
    chosen = rng.choices(("count", "distinct", "aggregate"), kind.calculations)[0]
    if chosen == "distinct" and (countable := [c for c in columns if c.kind in _DISTINCT]):
        return (("COUNT_DISTINCT", rng.choice(countable)),)
    numeric = [c for c in columns if c.numeric]
    if chosen != "aggregate" or not numeric:
        return (("COUNT", None),)
    column = rng.choice(numeric)
    ops = [op for op in _AGGREGATES if op != "SUM" or column.kind in _SUMMABLE]
    first = rng.choice(ops)
    if rng.random() < 0.12 and first != "HEATMAP":
        second = rng.choice([op for op in ops if op not in {first, "HEATMAP"}])
        return ((first, column), (second, column))
    return ((first, column),)


def _ranking(rng: Random, meaning: Meaning, kind: Kind) -> Meaning:
    op, column = meaning.calculations[0]
    if rng.random() < kind.ranked:
        limit = rng.choice((None, None, 3, 5, 5, 10, 10, 20, 7, 15, 50, 25, 100, 1))
        return replace(meaning, ranked=True, limit=limit, ascending=op == "MIN" or rng.random() < 0.22)
    if rng.random() < kind.having and len(meaning.calculations) == 1:
        numeric = column is not None and column.numeric and op != "COUNT_DISTINCT"
        small = (1, 2, 3, 5, 10, 20) if op == "COUNT_DISTINCT" else (1, 5, 10, 50, 100, 100, 200, 500, 1000, 5000)
        number = numeric_value(rng, column).value if numeric and column else rng.choice(small)
        assert isinstance(number, int | float)
        return replace(meaning, having=(rng.choice((">", ">", ">", ">=", "<", "<=")), number))
    return meaning
