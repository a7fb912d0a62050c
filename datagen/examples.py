"""Owns one example and the questions about one column list. Knows no files.

Use: `questions(rng, columns, Style.SEEN, count=8, set_id="train-00001")`.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from datagen.columns import ColumnSet
from datagen.kinds import KINDS
from datagen.noise import as_typed
from datagen.phrasebook import Phrasebook, Style
from datagen.teller import Teller
from honeycomb.errors import HoneycombError
from honeycomb.query import canonical_json, parse_query

_TRIES = 40


@dataclass(frozen=True)
class Example:
    """A question, the columns it was asked of, and its canonical query."""

    nlq: str
    cols: tuple[str, ...]
    query: dict[str, Any]
    category: str
    features: tuple[str, ...]
    templates: tuple[str, ...]
    column_set: str
    vocabularies: tuple[str, ...]

    def json(self) -> str:
        """One line of a data file."""
        return json.dumps(self.__dict__, ensure_ascii=False)


def questions(rng: Random, columns: ColumnSet, style: Style, *, count: int, set_id: str) -> list[Example]:
    """Different questions about these columns, of as many kinds as they allow."""
    found: dict[str, Example] = {}
    kinds: list[str] = []
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        kind = _next_kind(rng, kinds)
        example = _one(rng, columns, style, kind, set_id)
        if example and example.nlq.lower() not in found:
            found[example.nlq.lower()] = example
            kinds.append(kind)
    return list(found.values())


def _next_kind(rng: Random, kinds: list[str]) -> str:
    """By weight, but seldom a kind that this column list has had."""
    names = list(KINDS)
    return rng.choices(names, [KINDS[name].weight * (0.25 if name in kinds else 1) for name in names])[0]


def _one(rng: Random, columns: ColumnSet, style: Style, kind: str, set_id: str) -> Example | None:
    teller = Teller(rng, columns, Phrasebook(rng, style))
    sentence = KINDS[kind].ask(teller)
    if not sentence or teller.before not in sentence:
        return None
    try:
        query = parse_query(json.dumps(teller.draft.query()), columns.names)
    except HoneycombError as error:
        raise AssertionError(f"{kind}: {sentence!r} has the wrong query {teller.draft.query()}") from error
    return Example(
        nlq=as_typed(rng, teller.front + sentence),
        cols=columns.names,
        query=json.loads(canonical_json(query)),
        category=kind,
        features=tuple(sorted(teller.draft.features)),
        templates=tuple(teller.book.used),
        column_set=set_id,
        vocabularies=columns.vocabularies,
    )
