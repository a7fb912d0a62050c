"""A trained draft model follows the question, and the drafter uses its file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.training.draft_examples import (
    Pair,
    Renamer,
    batch_tensors,
    certain_trigrams,
    frequent_tokens,
    read_pairs,
)
from pipeline.training.draft_network import DraftModel
from pipeline.training.draft_trainer import evaluate, train
from pipeline.training.errors import AdapterError
from serving.config import Settings
from serving.drafting.step_cost import LinearCost
from serving.engines.paged.options import make_drafter
from serving.engines.paged.request import Request
from serving.types import GenerationRequest
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.honeycomb.options import PromptTemplate
from tasks.honeycomb.prompt import DRAFT_MARKERS, build_prompt
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
UNITS = {"hour": 3600, "day": 86400}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a model this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
def test_the_prompt_is_read_from_the_marker(tmp_path: Path, template: PromptTemplate) -> None:
    parts, answer = read_pairs(write_data(tmp_path), TOKENIZER, template)[0]
    prompt, markers = build_prompt("errors, last hour", ("a", "b"), template), DRAFT_MARKERS[template]
    places = [prompt.rindex(marker) + len(marker) for marker in markers]
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
    """The renamed versions of one example among others, in 300 draws."""
    renamer = Renamer([pair, OTHER], TOKENIZER, random.Random(0))
    return [renamer(pair) for _ in range(300)]


def test_a_word_of_the_columns_is_renamed_alike_in_question_and_answer() -> None:
    (name,) = encode("error")
    others = set()
    for parts, answer in rename(PAIR):
        other = answer[ANSWER.index(name)]
        assert answer == [other if token == name else token for token in ANSWER]
        assert parts[-1][QUESTION.index(name)] == other
        assert len(parts) == 1 or parts[0][COLUMNS.index(name)] == other
        assert len({*parts[-1]}) == len({*QUESTION})  # no two words got the same name
        others.add(other)
    assert name in others and len(others) > 3
    assert all(TOKENIZER.decode([other]).islower() for other in others)


def test_some_prompts_have_no_columns_as_if_they_were_too_long() -> None:
    assert 5 < sum(len(parts) == 1 for parts, _ in rename(PAIR)) < 80


def test_a_word_with_a_meaning_of_its_own_keeps_its_name() -> None:
    by = encode("by")[0]
    pair = ([[*COLUMNS, by], [*QUESTION, by]], ANSWER)  # also in a column that the question does not mean
    assert all(parts[-1][-1] == by for parts, _ in rename(pair))


def test_a_word_that_the_answer_has_with_a_space_before_it_keeps_its_name() -> None:
    plain, spaced = encode("the")[0], encode(" the")[0]
    assert TOKENIZER.without_space(spaced) == plain
    place = COLUMNS.index(plain)
    renamed = [parts[0][place] for parts, _ in rename(PAIR) if len(parts) > 1]
    kept = [parts[0][place] for parts, _ in rename((PAIR[0], [*ANSWER, spaced])) if len(parts) > 1]
    assert len({*renamed}) > 1 and {*kept} == {plain}


def test_a_prompt_without_a_separate_part_of_columns_is_not_changed() -> None:
    whole = ([COLUMNS + QUESTION], ANSWER)
    assert all(pair == whole for pair in rename(whole))


def test_data_that_is_too_long_for_a_draft_model_is_named(tmp_path: Path) -> None:
    row = {"nlq": "word " * 600, "cols": ["a"], "query": {}}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(AdapterError, match=r"train\.jsonl: no example"):
        read_pairs(tmp_path / "train.jsonl", TOKENIZER, "columns-first")


def test_trigrams_with_hardly_any_exceptions_count_as_certain() -> None:
    pairs = [([[9]], [1, 2, 3, 4, place]) for place in range(1000, 3000)]
    pairs += [([[9]], [1, 2, 5])]  # hardly any exceptions
    pairs += [([[9]], [3, 4, 1000])] * 20  # as many exceptions as cases
    pairs += [([[9]], [6, 7, 8])] * 5  # too rarely
    pairs += [([[9], [12]], [10, 11, 12])] * 300 + [([[9]], [10, 11, 12])] * 100  # mostly copied
    assert certain_trigrams(pairs) == [(1, 2, 3), (2, 3, 4)]


def test_training_continues_from_fewer_layers_and_new_layers_change_nothing_at_first(tmp_path: Path) -> None:
    embedding, ids = torch.randn(50, 32), torch.tensor([[3, 4, 5]])
    first, more = (DraftModel(embedding, size=32, num_layers=n) for n in (1, 3))
    torch.nn.init.normal_(first.layers[0].down.weight)
    first.save(tmp_path / DRAFT_MODEL, markers=[[1]], answer_tokens=[2], trigrams=[])
    more.restore(tmp_path / DRAFT_MODEL)
    logits = [model.logits(ids, ids[0], torch.tensor([[1, 2, 3]])) for model in (first, more)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)


def test_training_continues_only_from_a_file_of_the_same_size(tmp_path: Path) -> None:
    embedding = torch.randn(50, 32)
    first, second = (DraftModel(embedding, size=32, num_layers=2) for _ in range(2))
    first.save(tmp_path / DRAFT_MODEL, markers=[[1]], answer_tokens=[2], trigrams=[])
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


def test_drafts_of_a_trained_model_follow_the_question(tmp_path: Path) -> None:
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
        max_steps=300,
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

    markers = [TOKENIZER.encode(marker, add_bos=False) for marker in DRAFT_MARKERS["columns-first"]]
    learnt = {"answer_tokens": frequent_tokens(pairs), "trigrams": certain_trigrams(pairs)}
    model.save(tmp_path / DRAFT_MODEL, markers=markers, **learnt)
    drafter = make_drafter(Settings(weights_dir=tmp_path), TOKENIZER, embedding, LinearCost(0.03))
    for unit, seconds in UNITS.items():
        drafter.begin_step(1)
        prompt = TOKENIZER.encode(build_prompt(f"errors, last {unit}", ("a", "b"), "columns-first"))
        drafts = drafter.propose(Request(GenerationRequest(unit, tuple(prompt)), seed=0), 40)
        assert TOKENIZER.decode(drafts).startswith(f'{{"time_range": {seconds}}}')
