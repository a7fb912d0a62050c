"""Generate the examples for one column list."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from examples.honeycomb.datagen.column_set import ColumnSet
from examples.honeycomb.datagen.kinds import KINDS
from examples.honeycomb.datagen.noise import as_typed
from examples.honeycomb.datagen.phrasebook import Phrasebook, Style
from examples.honeycomb.datagen.question_builder import QuestionBuilder
from tasks.errors import TaskError
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.query import parse_query

_TRIES = 40


@dataclass(frozen=True)
class Example:
    """A question, its columns, and its canonical query."""

    nlq: str
    cols: tuple[str, ...]
    query: dict[str, Any]
    category: str
    features: tuple[str, ...]
    templates: tuple[str, ...]
    column_set: str
    vocabularies: tuple[str, ...]

    def json(self) -> str:
        """The example as one line of a data file."""
        return json.dumps(self.__dict__, ensure_ascii=False)


def questions(rng: Random, columns: ColumnSet, style: Style, *, count: int, set_id: str) -> list[Example]:
    """Up to `count` different questions about these columns, of as many kinds as the columns allow."""
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
    """A random kind by weight; kinds that this column list already has are less likely."""
    names = list(KINDS)
    return rng.choices(names, [KINDS[name].weight * (0.25 if name in kinds else 1) for name in names])[0]


def _one(rng: Random, columns: ColumnSet, style: Style, kind: str, set_id: str) -> Example | None:
    builder = QuestionBuilder(rng, columns, Phrasebook(rng, style))
    sentence = KINDS[kind].ask(builder)
    if not sentence or builder.before not in sentence:
        return None
    try:
        query = parse_query(json.dumps(builder.draft.query()), columns.names)
    except TaskError as error:
        raise AssertionError(f"{kind}: {sentence!r} has the wrong query {builder.draft.query()}") from error
    return Example(
        nlq=as_typed(rng, builder.front + sentence),
        cols=columns.names,
        query=json.loads(canonical_json(query)),
        category=kind,
        features=tuple(sorted(builder.draft.features)),
        templates=tuple(builder.book.used),
        column_set=set_id,
        vocabularies=columns.vocabularies,
    )
