"""Read the column vocabularies in `vocab/*.txt`.

A section `[name]` is a vocabulary, `[!name]` one for testing only. A line is `column kind[:detail] @role = synonyms`,
with `!strong` and `~weak` synonyms, and `~` for a space in a value.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from examples.honeycomb.datagen.column_set import Column

FOLDER = Path(__file__).parent / "vocab"
CORE = ("otel", "otel_new", "beeline", "plain", "camel", "seconds", "gateway")
_OTHER_FILES = frozenset({"entities", "instruments"})


@dataclass(frozen=True)
class Vocabulary:
    """Columns that occur together, and whether they are for testing only."""

    name: str
    held_out: bool
    columns: tuple[Column, ...]


def column_of(line: str) -> Column:
    """Parse a line of a vocabulary."""
    left, _, right = line.partition(" = ")
    name, kind, *rest = left.split()
    kind, _, detail = kind.partition(":")
    phrases = [phrase.strip() for phrase in right.split(";") if phrase.strip()]
    return Column(
        name=name,
        kind=kind,
        detail=detail.replace("~", " "),
        role=rest[0].removeprefix("@") if rest else None,
        strong=tuple(p[1:] for p in phrases if p[0] == "!"),
        synonyms=tuple(p for p in phrases if p[0] not in "!~"),
        weak=tuple(p[1:] for p in phrases if p[0] == "~"),
    )


def sections(path: Path) -> list[tuple[str, bool, list[str]]]:
    """The sections of a file: name, whether it is held out, and its lines."""
    found: list[tuple[str, bool, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            found.append((name.lstrip("!"), name.startswith("!"), []))
        elif line and not line.startswith("#"):
            found[-1][2].append(line)
    return found


@lru_cache(maxsize=1)
def vocabularies() -> dict[str, Vocabulary]:
    """All vocabularies by name."""
    return {
        name: Vocabulary(name, held_out, tuple(column_of(line) for line in lines))
        for path in sorted(FOLDER.glob("*.txt"))
        if path.stem not in _OTHER_FILES
        for name, held_out, lines in sections(path)
    }


@lru_cache(maxsize=2)
def entity_parts(held_out: bool) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Entities and attributes for made-up columns, either for training or held out."""
    entities: list[str] = []
    attributes: list[Column] = []
    for name, held, lines in sections(FOLDER / "entities.txt"):
        if name == "entities" and held == held_out:
            entities += [word for line in lines for word in line.split()]
        elif name == "attributes" and (held == held_out or not held):
            attributes += [column_of(line) for line in lines]
    return tuple(entities), tuple(attributes)
