"""Generate the examples of `people` for one column list, and the lists of a split."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from examples.honeycomb.datagen.column_set import ColumnSet
from examples.honeycomb.datagen.example_questions import Example
from examples.honeycomb.datagen.noise import as_typed, typing_errors
from examples.honeycomb.datagen.people.meaning import Meaning
from examples.honeycomb.datagen.people.query_languages import nrql, pipeline, promql, sql
from examples.honeycomb.datagen.people.question_kinds import KINDS
from examples.honeycomb.datagen.people.rates import rate, sampled_for_rate
from examples.honeycomb.datagen.people.sampling import one_more, sample_meaning
from examples.honeycomb.datagen.people.search_box import search_box
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.people.spoken import english, polite, telegram, terse, two_sentences
from examples.honeycomb.datagen.people.team_columns import team_columns
from examples.honeycomb.datagen.people.vague import vague
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.query import parse_query

_SURFACES = {"english": english, "polite": polite, "terse": terse, "telegram": telegram, "sentences": two_sentences}
_SURFACES |= {"search": search_box, "sql": sql, "nrql": nrql, "promql": promql, "pipe": pipeline}
_LANGUAGES = frozenset({"search", "sql", "nrql", "promql", "pipe"})
_PAIR_SHARE = 0.22
_TRIES = 40


def team_lists(name: str, *, seed: int, examples: int, per_set: int, held_out: bool) -> Iterator[list[Example]]:
    """The examples of one column list after the other, `examples` in all; the same for the same seed and name.

    Those held out have the teams that are never in training.
    """
    made = number = 0
    seen: set[frozenset[str]] = set()
    while made < examples:
        rng = Random(f"{seed}/people/{name}/{number}")
        number += 1
        columns = team_columns(rng, held_out=held_out)
        if frozenset(columns.names) in seen:
            continue
        seen.add(frozenset(columns.names))
        found = team_questions(rng, columns, count=min(per_set, examples - made), set_id=f"people-{name}-{number:05d}")
        made += len(found)
        yield found


def team_questions(rng: Random, columns: ColumnSet, *, count: int, set_id: str) -> list[Example]:
    """Up to `count` different questions about these columns; some are an earlier one with one thing more."""
    found: dict[str, Example] = {}
    last: Asked | None = None
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        more = one_more(rng, columns, last.meaning) if last and rng.random() < _PAIR_SHARE else None
        made = _written(rng, columns, replace(last, meaning=more)) if more and last else _asked(rng, columns)
        if made and made.text.lower() not in found:
            found[made.text.lower()] = _example(columns, made, set_id, one_more=bool(more))
            last = made if not more and made.surface in _SURFACES else None
    return list(found.values())


@dataclass(frozen=True)
class Asked:
    """A question: its kind (see `question_kinds`), its surface, what it means, and its text once it is written."""

    kind: str
    surface: str
    meaning: Meaning
    text: str = ""


def _asked(rng: Random, columns: ColumnSet) -> Asked | None:
    """A question of a random kind. The surface is drawn first: some surfaces cannot say all meanings, and it keeps its
    share if another meaning is drawn then."""
    kind = rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
    surface = rng.choices(list(KINDS[kind].surfaces), list(KINDS[kind].surfaces.values()))[0]
    for _ in range(_TRIES):
        if surface in _SURFACES:
            meaning = sample_meaning(rng, columns, KINDS[kind])
            if _is_of_kind(meaning, kind) and (made := _written(rng, columns, Asked(kind, surface, meaning))):
                return made
            continue
        t = Speaker(rng, columns, rng.choice(KINDS[kind].exactness))
        spoken = vague(t) if kind == "vague" else rate(t, sampled_for_rate(t))
        if spoken:
            return Asked(kind, surface, spoken[1], as_typed(rng, spoken[0]))
    return None


def _is_of_kind(meaning: Meaning, kind: str) -> bool:
    """Whether the thing that makes the kind could be drawn for these columns."""
    m = meaning
    wanted = {"having": m.having, "top": m.ranked or None, "grouping": m.groups or None}
    timed = m.window or m.start or m.step or m.compare
    return {**wanted, "aggregate": m.calculations[0][1], "time": timed}.get(kind, True) is not None


def _written(rng: Random, columns: ColumnSet, asked: Asked) -> Asked | None:
    t = Speaker(rng, columns, rng.choice(KINDS[asked.kind].exactness))
    text = _SURFACES[asked.surface](t, asked.meaning)
    if not text:
        return None
    if asked.surface in _LANGUAGES:
        return replace(asked, text=text.replace("\x02", "").replace("\x03", ""))
    text = typing_errors(rng, text) if rng.random() < KINDS[asked.kind].errors else text
    return replace(asked, text=as_typed(rng, text))


def _example(columns: ColumnSet, asked: Asked, set_id: str, *, one_more: bool) -> Example:
    draft = asked.meaning.draft()
    query = parse_query(json.dumps(draft.query()), columns.names)
    return Example(
        nlq=asked.text,
        cols=columns.names,
        query=json.loads(canonical_json(query)),
        category=f"people {asked.surface}",
        features=tuple(sorted(draft.features | {f"asks {asked.kind}"} | ({"one more"} if one_more else set()))),
        templates=(),
        column_set=set_id,
        vocabularies=columns.vocabularies,
    )
