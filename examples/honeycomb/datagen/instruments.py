"""Make up instrumentations: the usual columns of a dataset under unusual names.

A model trained on six real instrumentations memorizes their names; with thousands of made-up ones it learns to read the
column list. Only the training split uses them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.names import STYLES, random_prefix, restyle
from examples.honeycomb.datagen.vocabulary import FOLDER, column_of, sections, vocabularies

NAME = "mixed"
_STYLE_WEIGHTS = (50, 0, 20, 14, 6, 5, 5)
_OTHERS = 14
_QUALIFIED_SHARE = 0.4  # of the columns whose role has nouns
_QUALIFIERS = 3  # per instrumentation, so that some names share a prefix and differ only in their ends
_MAX_SIBLINGS = 2  # of one qualified column


@dataclass(frozen=True)
class Instruments:
    """Names with their units by role, columns without a role, and the parts of qualified names."""

    names: Mapping[str, tuple[tuple[str, str], ...]]
    others: tuple[Column, ...]
    qualifiers: tuple[str, ...]
    nouns: Mapping[str, tuple[str, ...]]
    siblings: tuple[Column, ...]


@lru_cache(maxsize=1)
def instruments() -> Instruments:
    """The contents of `vocab/instruments.txt`."""
    parts = {name: lines for name, _, lines in sections(FOLDER / "instruments.txt")}
    others, siblings = (tuple(map(column_of, parts.pop(name))) for name in ("other", "siblings"))
    qualifiers = tuple(" ".join(parts.pop("qualifiers")).split())
    nouns = {role: tuple(words) for role, *words in map(str.split, parts.pop("nouns"))}
    names = {role: tuple(map(_with_unit, " ".join(lines).split())) for role, lines in parts.items()}
    return Instruments(names, others, qualifiers, nouns, siblings)


def _with_unit(word: str) -> tuple[str, str]:
    name, _, unit = word.partition(":")
    return name, unit


def mixed_core(rng: Random) -> list[Column]:
    """One column for each role under one of its names, and some without a role, all in one naming style."""
    style, prefix = rng.choices(STYLES, _STYLE_WEIGHTS)[0], random_prefix(rng)
    usual = {column.role: column for column in vocabularies()["otel"].columns if column.role}
    qualifiers = rng.sample(instruments().qualifiers, _QUALIFIERS)
    columns: dict[str, Column] = {}
    for role, names in instruments().names.items():
        if role in instruments().nouns and rng.random() < _QUALIFIED_SHARE:
            found = _qualified(rng, usual[role], rng.choice(qualifiers))
        else:
            name, unit = rng.choice(names)
            found = [replace(usual[role], name=name, detail=unit or usual[role].detail)]
        columns |= {column.name: column for column in found if column.name not in columns or column.role}
    others = (column for column in rng.sample(instruments().others, _OTHERS) if column.name not in columns)
    return [replace(c, name=restyle(c.name, style, prefix)) for c in (*columns.values(), *others)]


def _qualified(rng: Random, usual: Column, qualifier: str) -> list[Column]:
    """A column with a role under a qualified name, and columns without a role that share its prefix."""
    noun = rng.choice(instruments().nouns[usual.role or ""])
    columns = [replace(usual, name=f"{qualifier}_{noun}")]
    for sibling in rng.sample(instruments().siblings, rng.randint(0, _MAX_SIBLINGS)):
        synonyms = tuple(f"{qualifier} {synonym}" for synonym in sibling.synonyms)
        columns.append(replace(sibling, name=f"{qualifier}_{sibling.name}", synonyms=synonyms))
    return columns
