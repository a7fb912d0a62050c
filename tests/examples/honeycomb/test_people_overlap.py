"""No training question equals a question kept for judging, or shares a long run of words with one."""

import json
import re

import pytest

from examples.honeycomb.datagen.dataset import SPLITS, generate
from examples.honeycomb.datagen.overlap import overlap
from examples.honeycomb.datagen.words import split_words
from pipeline.paths import ROOT

# Words that any two questions may share; what is left are names, values and what is asked.
COMMON = frozenset(
    split_words(
        "a all am an and any are as at by can count could did do does each every find for from get give had has have "
        "hour hours how i in is it last list many me minute minutes my no not number of on only or out over past per "
        "please show the their there these this those to us want was were what when where which with "
        "asc avg desc group having limit max min order select sum"
    )
)
MARKED = re.compile(r"\w+(?:[._:/@-]+\w+)+")
CONTENT_WORDS, WORDS = 6, 8


def content(question: str) -> str:
    """The words of a question without the common ones; a name or value with marks in it is left out."""
    normalised = MARKED.sub(" ", question)
    return " ".join(word for word in split_words(normalised) if word not in COMMON)


@pytest.fixture(scope="module")
def kept() -> list[str]:
    folder = ROOT / "examples" / "honeycomb" / "people"
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line)["nlq"] for line in lines]


@pytest.fixture(scope="module")
def training() -> list[str]:
    train = next(split for split in SPLITS if split.name == "train")
    return [example.nlq for example in generate(train, seed=0, examples=6000, seen=set())]


def test_no_training_question_is_one_of_those_kept(kept, training) -> None:
    longer = {split_words(question) for question in kept if len(split_words(question)) > 2}
    assert len(longer) > 350
    assert not [question for question in training if split_words(question) in longer]


def test_no_training_question_shares_a_long_run_of_words(kept, training) -> None:
    whole = [question for question in kept if len(split_words(question)) >= WORDS]
    bare = [words for words in map(content, kept) if len(words.split()) >= CONTENT_WORDS]
    assert len(whole) > 200 and len(bare) > 50
    assert not overlap(training, whole, WORDS)
    assert not overlap(map(content, training), bare, CONTENT_WORDS)
