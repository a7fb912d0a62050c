"""Compose the column list of a team from `teams.txt`, public conventions and confusable names."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random

from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.names import near_duplicate, restyle
from examples.honeycomb.datagen.vocabulary import column_of, sections
from examples.honeycomb.datagen.words import last_part, split_words

_FOLDER = Path(__file__).parent
_MIN_SIZE, _MAX_SIZE = 5, 80
_STYLES = ("plain", "plain", "plain", "plain", "snake", "camel", "app")
_TYPES = {"boolean": "flag", "enum": "enum", "string": "enum"}
# Last words of names of numbers that are not quantities, and words of moments: nobody averages or adds these up.
_CODES = frozenset(
    {"code", "port", "pid", "id", "number", "offset", "sequence", "segment", "position", "ready", "version"}
)
_TIMES = frozenset({"timestamp", "start", "end", "origin"})
_COUNTED = frozenset({"count", "tokens", "rows", "read", "written", "total", "attempt", "retries"})


@lru_cache(maxsize=1)
def teams() -> dict[str, tuple[bool, tuple[Column, ...]]]:
    """For each team: whether it is for testing only, and its columns."""
    return {
        name: (held_out, tuple(column_of(line) for line in lines))
        for path in sorted(_FOLDER.glob("teams*.txt"))
        for name, held_out, lines in sections(path)
    }


@lru_cache(maxsize=1)
def conventions() -> dict[str, tuple[Column, ...]]:
    """Columns of public conventions by namespace; columns without example values are in the list but never asked."""
    found: dict[str, list[Column]] = {}
    for line in (_FOLDER / "conventions.tsv").read_text(encoding="utf-8").splitlines():
        _, name, kind, values, meaning = line.split("\t")
        found.setdefault(name.split(".")[0], []).append(_column(name, kind, values, meaning))
    return {space: tuple(columns) for space, columns in found.items() if len(columns) >= 4}


def _column(name: str, kind: str, values: str, meaning: str) -> Column:
    words = split_words(name)
    if _TIMES & set(words) and words[-1] not in {"duration", "count"}:
        return Column(name, "ts", exact_only=True)
    if kind in {"int", "double"}:
        if words[-1] in _CODES:
            return Column(name, "status" if words[-2:] == ("status", "code") else "code")
        unit = {"bytes": "b", "size": "b"}.get(words[-1]) or ("ms" if "millisecond" in meaning else None)
        counted = kind == "int" and _COUNTED & set(words) and words[-1] != "limit"
        known = "bytes" if unit == "b" else "dur" if unit else "count" if counted else "num"
        return Column(name, known, unit or "")
    if kind == "boolean":
        return Column(name, "flag")
    listed = values.replace(",", "|").split("|") if values and kind else []
    usable = [value for value in listed if value and value == value.strip() and not value.isdigit()]
    return Column(name, "enum", ",".join(usable)) if usable else Column(name, "opaque", exact_only=True)


def team_columns(rng: Random, *, held_out: bool) -> ColumnSet:
    """A column list of 5–80 names; the teams of test_people are never in training."""
    names = [name for name, (held, _) in teams().items() if held == held_out]
    name = rng.choice(names)
    columns = list(teams()[name][1])
    if rng.random() < 0.4:
        columns = [c for c in columns if c.role == "duration" or rng.random() < 0.7]
    used = [f"team/{name}"]
    if rng.random() < 0.3:
        other = rng.choice([n for n in names if n != name])
        columns += [replace(c, role=None, strong=()) for c in rng.sample(teams()[other][1], rng.randint(2, 6))]
        used.append(f"team/{other}")
    style = rng.choice(_STYLES)
    if style != "plain" and rng.random() < 0.6:
        columns = [replace(c, name=restyle(c.name, style)) for c in columns]
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        space = rng.choice(sorted(conventions()))
        columns += rng.sample(conventions()[space], min(len(conventions()[space]), rng.randint(2, 12)))
    columns += _confusable(rng, columns)
    unique = list({c.name: c for c in reversed(columns)}.values())[::-1][:_MAX_SIZE]
    order = rng.random()
    if order < 0.35:
        unique.sort(key=lambda c: c.name)
    elif order < 0.75:
        rng.shuffle(unique)
    return ColumnSet(tuple(_without_shared_words(unique)), tuple(used))


def _confusable(rng: Random, columns: list[Column]) -> list[Column]:
    """Names that differ from those of the list in one word or in style, without any role or synonym."""
    chosen = rng.sample(columns, min(len(columns), rng.choice((0, 1, 1, 2, 4))))
    found: list[Column] = []
    for column in chosen:
        words = split_words(column.name)
        other = {"id": "uuid", "name": "slug", "ms": "us", "count": "total", "url": "uri"}.get(words[-1])
        name = "_".join((*words[:-1], other)) if other and len(words) > 1 else near_duplicate(column.name, rng)
        unit = {"us": "us"}.get(name.rsplit("_", 1)[-1], column.detail)
        detail = unit if column.kind == "dur" else column.detail
        found.append(Column(name, column.kind, detail, exact_only=True))
    return found


def _without_shared_words(columns: list[Column]) -> list[Column]:
    """The columns; a synonym that another column's name ends with is dropped, so that words decide only once."""
    ends = {split_words(last_part(c.name)): c.name for c in columns}
    return [
        replace(
            c,
            synonyms=tuple(s for s in c.synonyms if ends.get(split_words(s), c.name) == c.name),
            strong=tuple(s for s in c.strong if ends.get(split_words(s), c.name) == c.name),
        )
        for c in columns
    ]
