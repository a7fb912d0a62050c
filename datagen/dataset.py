"""Owns the splits. Each column list belongs to one split; held-out vocabularies and templates only to tests.

train and validation: vocabularies and templates of training. test_columns: unseen columns, templates of training.
test_templates: unseen columns and unseen templates. Use: `for example in split(PLAN[0], seed=0, examples=40_000)`.
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
    fixed_size: int | None = None

    def size(self, examples: int) -> int:
        """How many examples, when so many are wanted in all."""
        others = sum(split.fixed_size or 0 for split in SPLITS)
        return self.fixed_size if self.fixed_size is not None else max(0, examples - others)


SPLITS = (
    Split("train", False, Style.SEEN, PER_SET),
    Split("validation", False, Style.SEEN, 2, 400),
    Split("test_columns", True, Style.SEEN, 2, 1200),
    Split("test_templates", True, Style.UNSEEN, 2, 1200),
)


def generate(split: Split, *, seed: int, examples: int, seen: set[frozenset[str]]) -> Iterator[Example]:
    """The examples of a split; `seen` holds the column lists of earlier splits and grows."""
    made = number = 0
    wanted = split.size(examples)
    while made < wanted:
        rng = Random(f"{seed}/{split.name}/{number}")
        number += 1
        columns = assemble(rng, held_out=split.held_out)
        if frozenset(columns.names) in seen:
            continue
        seen.add(frozenset(columns.names))
        set_id = f"{split.name}-{number:05d}"
        for example in questions(
            rng, columns, split.style, count=min(split.per_set, wanted - made), set_id=set_id
        ):
            made += 1
            yield example
