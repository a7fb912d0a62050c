"""Training a draft model: it learns what the question decides, and its file is what the drafter follows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from honeycomb.profile import PromptTemplate
from honeycomb.prompt import DRAFT_MARKS, build_prompt
from scripts.training.draft_examples import (
    Pair,
    Renamer,
    batch_tensors,
    certain_trigrams,
    frequent_tokens,
    read_pairs,
)
from scripts.training.draft_model import DraftModel
from scripts.training.draft_trainer import evaluate, train
from scripts.training.errors import AdapterError
from serving.config import Settings
from serving.draft_weights import DRAFT_MODEL
from serving.paged.choices import make_drafter
from serving.paged.request import Request
from serving.types import GenerationRequest
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
UNITS = {"hour": 3600, "day": 86400}


def write_data(folder: Path) -> Path:
    """Questions that differ in one word, and answers in one number."""
    rows = [
        {"nlq": f"errors, last {unit}", "cols": ["a", "b"], "query": {"time_range": seconds}}
        for unit, seconds in UNITS.items()
    ]
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 30))
    return path


@pytest.mark.parametrize("template", ["columns-first", "question-first"])
def test_what_is_read_is_the_prompts_end_behind_the_mark(tmp_path: Path, template: PromptTemplate) -> None:
    parts, answer = read_pairs(write_data(tmp_path), TOKENIZER, template)[0]
    prompt, marks = build_prompt("errors, last hour", ("a", "b"), template), DRAFT_MARKS[template]
    places = [prompt.rindex(mark) + len(mark) for mark in marks]
    expected = [prompt[start:end] for start, end in zip(places, [*places[1:], None], strict=True)]
    assert TOKENIZER.decode(answer) == '{"time_range": 3600}'
    left_out = str.maketrans("", "", " \n'\"")
    assert [TOKENIZER.decode(part) for part in parts] == [text.translate(left_out) for text in expected]


def test_the_target_of_a_token_is_the_next_one_of_the_answer() -> None:
    ids, targets, seen = batch_tensors([([[8, 1], [2]], [3, 4, 5]), ([[6]], [7])])
    assert ids[0, :6].tolist() == [8, 1, 2, 3, 4, 5]
    assert targets[0, :7].tolist() == [-1, -1, 3, 4, 5, -1, -1]
    assert targets[1, :3].tolist() == [7, -1, -1]
    assert seen[0, :6].tolist() == [2, 2, 3, 4, 5, 6]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


COLUMNS, QUESTION, ANSWER = map(encode, ("['error','the','x']", "error?", '{"column": "error"}'))
PAIR = ([COLUMNS, QUESTION], ANSWER)


OTHER = ([encode("['value']"), encode("value?")], encode('{"column": "value"}'))


def rename(pair: Pair) -> list[Pair]:
    """What becomes of one among others, in 300 goes."""
    renamer = Renamer([pair, OTHER], TOKENIZER, random.Random(0))
    return [renamer(pair) for _ in range(300)]


def test_a_word_of_the_columns_gets_one_other_name_in_question_and_answer() -> None:
    (name,) = encode("error")
    others = set()
    for parts, answer in rename(PAIR):
        other = answer[ANSWER.index(name)]
        assert answer == [other if token == name else token for token in ANSWER]
        assert parts[-1][QUESTION.index(name)] == other
        assert len(parts) == 1 or parts[0][COLUMNS.index(name)] == other
        assert len({*parts[-1]}) == len({*QUESTION})  # no two words became one
        others.add(other)
    assert name in others and len(others) > 3
    assert all(TOKENIZER.decode([other]).islower() for other in others)


def test_some_prompts_are_without_columns_as_where_they_are_too_long() -> None:
    assert 5 < sum(len(parts) == 1 for parts, _ in rename(PAIR)) < 80


def test_a_word_with_a_meaning_of_its_own_keeps_its_name() -> None:
    by = encode("by")[0]
    pair = ([[*COLUMNS, by], [*QUESTION, by]], ANSWER)  # in a column too, and not meant by the question
    assert all(parts[-1][-1] == by for parts, _ in rename(pair))


def test_a_word_that_the_answer_has_with_a_space_before_it_keeps_its_name() -> None:
    plain, spaced = encode("the")[0], encode(" the")[0]
    assert TOKENIZER.without_space(spaced) == plain
    place = COLUMNS.index(plain)
    renamed = [parts[0][place] for parts, _ in rename(PAIR) if len(parts) > 1]
    kept = [parts[0][place] for parts, _ in rename((PAIR[0], [*ANSWER, spaced])) if len(parts) > 1]
    assert len({*renamed}) > 1 and {*kept} == {plain}


def test_a_prompt_whose_columns_are_no_part_of_their_own_stays_as_it_is() -> None:
    whole = ([COLUMNS + QUESTION], ANSWER)
    assert all(pair == whole for pair in rename(whole))


def test_data_that_is_too_long_for_a_draft_model_is_named(tmp_path: Path) -> None:
    row = {"nlq": "word " * 600, "cols": ["a"], "query": {}}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(AdapterError, match=r"train\.jsonl: no example"):
        read_pairs(tmp_path / "train.jsonl", TOKENIZER, "columns-first")


def test_what_follows_two_tokens_is_certain_where_it_hardly_ever_differs() -> None:
    pairs = [([[9]], [1, 2, 3, 4, place]) for place in range(1000, 3000)]
    pairs += [([[9]], [1, 2, 5])]  # hardly ever
    pairs += [([[9]], [3, 4, 1000])] * 20  # often enough, and others as often
    pairs += [([[9]], [6, 7, 8])] * 5  # too rarely
    pairs += [([[9], [12]], [10, 11, 12])] * 300 + [([[9]], [10, 11, 12])] * 100  # mostly copied
    assert certain_trigrams(pairs) == [(1, 2, 3), (2, 3, 4)]


def test_a_file_with_fewer_layers_is_gone_on_from_and_the_others_change_nothing(tmp_path: Path) -> None:
    embedding, ids = torch.randn(50, 32), torch.tensor([[3, 4, 5]])
    first, more = (DraftModel(embedding, size=32, num_layers=n) for n in (1, 3))
    torch.nn.init.normal_(first.layers[0].down.weight)
    first.save(tmp_path / DRAFT_MODEL, marks=[[1]], answer_tokens=[2], always=[])
    more.restore(tmp_path / DRAFT_MODEL)
    logits = [model.logits(ids, ids[0], torch.tensor([[1, 2, 3]])) for model in (first, more)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)


def test_it_goes_on_from_a_file_of_its_size_and_no_other(tmp_path: Path) -> None:
    embedding = torch.randn(50, 32)
    first, second = (DraftModel(embedding, size=32, num_layers=2) for _ in range(2))
    first.save(tmp_path / DRAFT_MODEL, marks=[[1]], answer_tokens=[2], always=[])
    second.restore(tmp_path / DRAFT_MODEL)
    ids = torch.tensor([[3, 4, 5]])
    logits = [model.logits(ids, ids[0], torch.tensor([[1, 2, 3]])) for model in (first, second)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)
    for other in (DraftModel(embedding, size=64, num_layers=2), DraftModel(embedding, size=32, num_layers=1)):
        with pytest.raises(AdapterError, match=r"draft\.model"):
            other.restore(tmp_path / DRAFT_MODEL)
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(AdapterError, match="other"):
        second.restore(tmp_path / "other")


def test_a_trained_one_makes_the_drafter_follow_the_question(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pairs = read_pairs(write_data(tmp_path), TOKENIZER, "columns-first")
    embedding = torch.randn(TOKENIZER.vocab_size, 32)
    model = DraftModel(embedding, size=32, num_layers=2)
    before, _ = evaluate(model, pairs, 20)
    reports: list[int] = []
    steps = train(
        model,
        pairs,
        minutes=10.0,
        most_steps=300,
        rate=1e-2,
        batch=20,
        order=random.Random(0),
        change=lambda pair: pair,
        report=lambda step, *_: reports.append(step),
    )
    loss, right = evaluate(model, pairs, 20)
    assert reports == list(range(1, steps + 1)) and steps == 300
    assert loss < before / 5
    assert right > 0.95

    marks = [TOKENIZER.encode(mark, add_bos=False) for mark in DRAFT_MARKS["columns-first"]]
    learnt = {"answer_tokens": frequent_tokens(pairs), "always": certain_trigrams(pairs)}
    model.save(tmp_path / DRAFT_MODEL, marks=marks, **learnt)
    drafter = make_drafter(Settings(weights_dir=tmp_path), TOKENIZER, embedding, 0.03)
    for unit, seconds in UNITS.items():
        drafter.begin_step(1)
        prompt = TOKENIZER.encode(build_prompt(f"errors, last {unit}", ("a", "b"), "columns-first"))
        drafts = drafter.propose(Request(GenerationRequest(unit, tuple(prompt)), seed=0), 40)
        assert TOKENIZER.decode(drafts).startswith(f'{{"time_range": {seconds}}}')
