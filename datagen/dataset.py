"""Owns the splits: each column list belongs to one; held-out vocabularies and templates only to tests.

train and validation have the vocabularies and templates of training, train some templates more;
test_columns has unseen column lists and vocabularies; test_templates unseen templates too.
Use: `generate(SPLITS[0], seed=0, examples=40_000, seen=set())`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from datagen.assemble import assemble
from datagen.examples import Example, questions
from datagen.phrasebook import Style

PER_SET = 8


@dataclass(frozen=True)
class Split:
    """One file: its share of the examples, its vocabularies and its templates."""

    name: str
    held_out: bool
    style: Style
    per_set: int
    percent: int

    def size(self, examples: int) -> int:
        """How many examples, when so many are wanted in all."""
        return examples * self.percent // 100


SPLITS = (
    Split("train", False, Style.TRAINING, PER_SET, 93),
    Split("validation", False, Style.SEEN, 2, 1),
    Split("test_columns", True, Style.SEEN, 2, 3),
    Split("test_templates", True, Style.UNSEEN, 2, 3),
)


def generate(split: Split, *, seed: int, examples: int, seen: set[frozenset[str]]) -> Iterator[Example]:
    """The examples of a split; `seen` holds the column lists of earlier splits and grows."""
    made = number = 0
    wanted = split.size(examples)
    while made < wanted:
        rng = Random(f"{seed}/{split.name}/{number}")
        number += 1
        columns = assemble(rng, held_out=split.held_out, mixed=split.style is Style.TRAINING)
        if frozenset(columns.names) in seen:
            continue
        seen.add(frozenset(columns.names))
        set_id = f"{split.name}-{number:05d}"
        count = min(split.per_set, wanted - made)
        for example in questions(rng, columns, split.style, count=count, set_id=set_id):
            made += 1
            yield example
