"""Generate the splits of the data. Each column list belongs to one split only.

train mixes two generators, the templates and `people`, and has the written questions beside them. train and validation
share vocabularies and templates, but some templates are only in train. test_columns has vocabularies that are not in
train, and test_templates also has templates that are not. test_people has questions of `people` about teams that are
not in train, and test_written those about the datasets in `written/held_out`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from examples.honeycomb.datagen.assemble import assemble
from examples.honeycomb.datagen.example_questions import Example, questions
from examples.honeycomb.datagen.people.team_questions import team_lists
from examples.honeycomb.datagen.phrasebook import Style
from examples.honeycomb.datagen.written_questions import WRITTEN, written_lists

PER_SET = 8


@dataclass(frozen=True)
class Split:
    """One split: its vocabularies and templates, examples per column list, and its percentage of all examples.

    `people_share` is the part of its examples that `people` makes; the templates make the others. Written questions
    come on top, each of them `written` times.
    """

    name: str
    held_out: bool
    style: Style
    per_set: int
    percent: int
    people_share: float = 0.0
    written: int = 0

    def size(self, examples: int) -> int:
        """The number of examples of this split out of a total of `examples`."""
        return examples * self.percent // 100


SPLITS = (
    Split("train", False, Style.TRAINING, PER_SET, 92, people_share=0.5, written=1),
    Split("validation", False, Style.SEEN, 2, 1),
    Split("test_columns", True, Style.SEEN, 2, 3),
    Split("test_templates", True, Style.UNSEEN, 2, 3),
    Split("test_people", True, Style.SEEN, 2, 1, people_share=1.0),
    Split("test_written", True, Style.SEEN, PER_SET, 0, written=1),
)


def generate(split: Split, *, seed: int, examples: int, seen: set[frozenset[str]]) -> Iterator[Example]:
    """Generate the examples of a split; `seen` has the column lists of earlier splits, and this one's are added."""
    total = split.size(examples)
    from_people = round(total * split.people_share)
    sources = (
        (total - from_people, _template_lists(split, seed, total - from_people, seen)),
        (from_people, _people_lists(split, seed, from_people)),
    )
    made = [0, 0]
    while sum(made) < total:  # the source that is further behind gives the next list
        behind = min((0, 1), key=lambda source: (made[source] + 1) / max(sources[source][0], 1e-9))
        found = next(sources[behind][1])
        made[behind] += len(found)
        yield from found
    folder = WRITTEN / "held_out" if split.held_out else WRITTEN
    for found in written_lists(seed=seed, per_set=split.per_set, repeats=split.written, folder=folder):
        yield from found


def _people_lists(split: Split, seed: int, total: int) -> Iterator[list[Example]]:
    return team_lists(split.name, seed=seed, examples=total, per_set=split.per_set, held_out=split.held_out)


def _template_lists(split: Split, seed: int, total: int, seen: set[frozenset[str]]) -> Iterator[list[Example]]:
    made = number = 0
    while made < total:
        rng = Random(f"{seed}/{split.name}/{number}")
        number += 1
        columns = assemble(rng, held_out=split.held_out, mixed=split.style is Style.TRAINING)
        if frozenset(columns.names) in seen:
            continue
        seen.add(frozenset(columns.names))
        set_id = f"{split.name}-{number:05d}"
        found = questions(rng, columns, split.style, count=min(split.per_set, total - made), set_id=set_id)
        made += len(found)
        yield found
