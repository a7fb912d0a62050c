"""Compose the column list of a dataset from vocabularies.

A list has at most one column for each role, so that it determines the meaning of "errors" or "latency". Near-duplicates
of columns are added as distractors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.instruments import NAME, mixed_core
from examples.honeycomb.datagen.names import STYLES, near_duplicate, random_prefix, restyle, ugly_name
from examples.honeycomb.datagen.vocabulary import CORE, entity_parts, vocabularies

_CORE_WEIGHTS = {
    "otel": 40,
    "otel_new": 17,
    "beeline": 10,
    "plain": 12,
    "camel": 9,
    "seconds": 7,
    "gateway": 0,
}
_KEEP = {"duration": 0.95, "error": 0.75, "trace": 0.8, "parent": 0.8, "service": 0.85, "name": 0.85}
_KEEP |= {
    "route": 0.7,
    "method": 0.7,
    "status": 0.75,
    "region": 0.4,
    "env": 0.4,
    "host": 0.5,
    "exception": 0.55,
}
_CORE_SHARES = (0.35, 0.45, 0.5, 0.55, 0.65, 0.75, 1.0)
_MIXED_SHARE = 0.5
_MIN_SIZE, _MAX_SIZE = 5, 80


def assemble(rng: Random, *, held_out: bool, mixed: bool) -> ColumnSet:
    """A column list of 5–80 names, of domains that never occur in training if it is held out.

    If it is mixed, its instrumentation may be made up, as in `instruments`.
    """
    size = max(_MIN_SIZE, min(_MAX_SIZE, round(rng.lognormvariate(3.08, 0.48))))
    core = NAME if mixed and rng.random() < _MIXED_SHARE else _pick_core(rng, held_out)
    columns = mixed_core(rng) if core == NAME else vocabularies()[core].columns
    chosen = _core_columns(rng, columns, max(4, round(size * rng.choice(_CORE_SHARES))))
    used = [core]
    while len(chosen) < size:
        name, domain = _domain(rng, held_out, core)
        used.append(name)
        take = rng.randint(3, 10)
        chosen = _merge(chosen, rng.sample(domain, min(take, len(domain), size - len(chosen))))
    chosen = _merge(chosen, _clutter(rng, chosen))[:_MAX_SIZE]
    rng.shuffle(chosen)
    if rng.random() < 0.12:
        chosen.sort(key=lambda column: column.name)
    return ColumnSet(tuple(chosen), tuple(dict.fromkeys(used)))


def _pick_core(rng: Random, held_out: bool) -> str:
    if held_out and rng.random() < 0.3:
        return "gateway"
    return rng.choices(CORE, [_CORE_WEIGHTS[name] for name in CORE])[0]


def _core_columns(rng: Random, columns: Sequence[Column], count: int) -> list[Column]:
    """First columns with a role, then others of the same instrumentation."""
    first = [c for c in columns if c.role and rng.random() < _KEEP.get(c.role, 0.5)]
    rng.shuffle(first)
    first.sort(key=lambda c: c.role not in {"duration", "error", "trace", "parent"})
    rest = [c for c in columns if not c.role]
    rng.shuffle(rest)
    return _merge([], (first + rest)[:count])


def _domain(rng: Random, held_out: bool, core: str) -> tuple[str, list[Column]]:
    """The columns of one business domain, in a random naming style."""
    style = rng.choices(STYLES, (49, 18, 14, 6, 8, 3, 2))[0]
    if core in {"camel", "seconds", "plain"} and rng.random() < 0.75:
        style = "camel" if core == "camel" else "snake"
    prefix = random_prefix(rng)
    if rng.random() < 0.4:
        name, columns = "entities" + ("_held" if held_out else ""), _entity_columns(rng, held_out)
    else:
        names = [v.name for v in vocabularies().values() if v.held_out == held_out and v.name not in CORE]
        name = rng.choice(names)
        columns = list(vocabularies()[name].columns)
        if rng.random() < 0.5:
            style = "plain" if style in {"app", "prefix"} else style
    return name, [replace(column, name=restyle(column.name, style, prefix)) for column in columns]


def _entity_columns(rng: Random, held_out: bool) -> list[Column]:
    entities, attributes = entity_parts(held_out)
    columns: list[Column] = []
    for entity in rng.sample(entities, rng.randint(1, 4)):
        for attribute in rng.sample(attributes, rng.randint(2, 6)):
            synonyms = (entity,) if attribute.name == "id" else ()
            columns.append(replace(attribute, name=f"{entity}.{attribute.name}", synonyms=synonyms))
    return columns


def _clutter(rng: Random, columns: list[Column]) -> list[Column]:
    """Near-duplicates of columns in the list, and meaningless names."""
    clutter: list[Column] = []
    for column in rng.sample(columns, round(len(columns) * rng.choice((0, 0, 0.05, 0.1, 0.2)))):
        name = near_duplicate(column.name, rng)
        if column.role not in {"duration", "error", "trace", "parent"}:
            clutter.append(Column(name, column.kind, column.detail, exact_only=True))
    if rng.random() < 0.1:
        for _ in range(rng.randint(1, 6)):
            kind, detail = rng.choice((("num", ""), ("enum", "a,b,ok,n/a"), ("id", "hex")))
            clutter.append(Column(ugly_name(rng), kind, detail, exact_only=True))
    return clutter


def _merge(columns: list[Column], more: Iterable[Column]) -> list[Column]:
    """Both lists, without further columns of the same name or role."""
    names = {column.name for column in columns}
    roles = {column.role for column in columns if column.role}
    merged = list(columns)
    for column in more:
        if column.name not in names and column.role not in roles:
            merged.append(column)
            names.add(column.name)
            roles |= {column.role} if column.role else set()
    return merged
