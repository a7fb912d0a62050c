"""Training a draft model: it learns what the question decides, and its file is what the drafter follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from honeycomb.profile import PromptTemplate
from honeycomb.prompt import QUESTION_MARKS, build_prompt
from scripts.training.draft_model import DraftModel, batch_tensors
from scripts.training.draft_trainer import evaluate, frequent_tokens, read_pairs, train
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
    read, answer = read_pairs(write_data(tmp_path), TOKENIZER, template)[0]
    prompt = build_prompt("errors, last hour", ("a", "b"), template)
    expected = prompt[prompt.rindex(QUESTION_MARKS[template]) + len(QUESTION_MARKS[template]) :]
    assert TOKENIZER.decode(answer) == '{"time_range": 3600}'
    assert TOKENIZER.decode(read).replace(" ", "") == expected.replace(" ", "")


def test_the_target_of_a_token_is_the_next_one_of_the_answer() -> None:
    ids, targets = batch_tensors([([1, 2], [3, 4, 5]), ([6], [7])])
    assert ids[0, :5].tolist() == [1, 2, 3, 4, 5]
    assert targets[0, :6].tolist() == [-1, 3, 4, 5, -1, -1]
    assert targets[1, :3].tolist() == [7, -1, -1]


def test_data_that_is_too_long_for_a_draft_model_is_named(tmp_path: Path) -> None:
    row = {"nlq": "word " * 600, "cols": ["a"], "query": {}}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(AdapterError, match=r"train\.jsonl: no example"):
        read_pairs(tmp_path / "train.jsonl", TOKENIZER, "columns-first")


def test_it_goes_on_from_a_file_of_its_size_and_no_other(tmp_path: Path) -> None:
    embedding = torch.randn(50, 32)
    first, second = (DraftModel(embedding, size=32, num_layers=2) for _ in range(2))
    first.save(tmp_path / DRAFT_MODEL, mark=[1], answer_tokens=[2])
    second.restore(tmp_path / DRAFT_MODEL)
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(first.logits(ids, ids[0]), second.logits(ids, ids[0]), rtol=1e-2, atol=1e-2)
    for other in (DraftModel(embedding, size=64, num_layers=2), DraftModel(embedding, size=32, num_layers=3)):
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
        seed=0,
        report=lambda step, *_: reports.append(step),
    )
    loss, right = evaluate(model, pairs, 20)
    assert reports == list(range(1, steps + 1)) and steps == 300
    assert loss < before / 5
    assert right > 0.95

    mark = TOKENIZER.encode(QUESTION_MARKS["columns-first"], add_bos=False)
    model.save(tmp_path / DRAFT_MODEL, mark=mark, answer_tokens=frequent_tokens(pairs))
    drafter = make_drafter(Settings(weights_dir=tmp_path), TOKENIZER, embedding)
    for unit, seconds in UNITS.items():
        drafter.begin_step(1)
        prompt = TOKENIZER.encode(build_prompt(f"errors, last {unit}", ("a", "b"), "columns-first"))
        drafts = drafter.propose(Request(GenerationRequest(unit, tuple(prompt)), seed=0), 40)
        assert TOKENIZER.decode(drafts).startswith(f'{{"time_range": {seconds}}}')
