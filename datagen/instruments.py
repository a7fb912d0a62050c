"""Owns made-up instrumentations: the columns of every dataset, under names that no other list gives them.

A model that has met six instrumentations learns their names by heart; one that has met thousands learns
to look. Only training uses them. Use: `mixed_core(rng)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from datagen.columns import Column
from datagen.names import STYLES, random_prefix, restyle
from datagen.vocabulary import FOLDER, column_of, sections, vocabularies

NAME = "mixed"
_STYLE_WEIGHTS = (50, 0, 20, 14, 6, 5, 5)
_OTHERS = 14


@dataclass(frozen=True)
class Instruments:
    """Names with their units by role, and columns without a role."""

    names: Mapping[str, tuple[tuple[str, str], ...]]
    others: tuple[Column, ...]


@lru_cache(maxsize=1)
def instruments() -> Instruments:
    """What `vocab/instruments.txt` says."""
    names: dict[str, tuple[tuple[str, str], ...]] = {}
    others: tuple[Column, ...] = ()
    for role, _, lines in sections(FOLDER / "instruments.txt"):
        if role == "other":
            others = tuple(column_of(line) for line in lines)
        else:
            parts = [word.partition(":") for line in lines for word in line.split()]
            names[role] = tuple((name, unit) for name, _, unit in parts)
    return Instruments(names, others)


def mixed_core(rng: Random) -> list[Column]:
    """One column a role under one of its names, and some without a role, all in one style."""
    style, prefix = rng.choices(STYLES, _STYLE_WEIGHTS)[0], random_prefix(rng)
    usual = {column.role: column for column in vocabularies()["otel"].columns if column.role}
    columns = []
    for role, names in instruments().names.items():
        name, unit = rng.choice(names)
        columns.append(replace(usual[role], name=name, detail=unit or usual[role].detail))
    columns += rng.sample(instruments().others, _OTHERS)
    return [replace(column, name=restyle(column.name, style, prefix)) for column in columns]
