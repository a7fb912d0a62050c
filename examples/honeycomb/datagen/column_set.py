"""Columns of a dataset, and the rule by which a phrase refers to one of them.

Levels of a match, the best first: the whole name, a strong synonym, the last part of a name, a synonym, a weak synonym,
the end of a name, some words of a name. A phrase refers to a column only if the best level that matches has exactly
one.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from examples.honeycomb.datagen.words import last_part, split_words, strip_units


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its values, its role in a dataset, and synonyms of its name."""

    name: str
    kind: str
    detail: str = ""
    role: str | None = None
    strong: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    exact_only: bool = False

    @property
    def numeric(self) -> bool:
        """Whether values can be averaged, summed and compared."""
        return self.kind in {"dur", "bytes", "count", "money", "num", "pct"}

    @property
    def groupable(self) -> bool:
        """Whether grouping by the column makes sense."""
        return self.kind in {"id", "enum", "op", "service", "method", "path", "status", "host", "env"} or (
            self.kind in {"region", "version", "email", "url", "ip", "flag", "code"}
        )


@dataclass(frozen=True)
class ColumnSet:
    """The columns of one dataset, in the order of the user's list."""

    columns: tuple[Column, ...]
    vocabularies: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def roles(self) -> dict[str, Column]:
        """The column of each role."""
        return {column.role: column for column in self.columns if column.role}

    @cached_property
    def _index(self) -> list[dict[tuple[str, ...], set[str]]]:
        levels: list[dict[tuple[str, ...], set[str]]] = [defaultdict(set) for _ in range(6)]
        for column in self.columns:
            words = split_words(column.name)
            levels[0][words].add(column.name)
            levels[2][split_words(last_part(column.name))].add(column.name)
            levels[3][strip_units(words)].add(column.name)
            levels[3][strip_units(split_words(last_part(column.name)))].add(column.name)
            for level, phrases in ((1, column.strong), (3, column.synonyms), (4, column.weak)):
                for phrase in phrases:
                    levels[level][split_words(phrase)].add(column.name)
            for start in range(1, len(words)):
                levels[5][words[start:]].add(column.name)
        return levels

    def resolve(self, phrase: str) -> str | None:
        """The name of the column that a phrase refers to; None if there is none or more than one."""
        if phrase in self.names:
            return phrase
        words = split_words(phrase)
        for level in self._index:
            if found := level.get(words):
                return next(iter(found)) if len(found) == 1 else None
        parts = set(words)
        found = {column.name for column in self.columns if parts <= set(split_words(column.name))}
        return found.pop() if len(found) == 1 else None
