"""Training data becomes the drafter's initial table; invalid lines are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples.honeycomb.datagen.files import answer_lines
from pipeline.weights.build_from_sources import write_draft_table
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from serving.drafting.load_drafter import DraftModelLoader
from serving.drafting.ngrams import DRAFT_TABLE, NgramTable
from serving.drafting.speculative import LinearCost
from serving.engines.paged.options import make_drafter
from serving.engines.paged.request import Request
from serving.types import GenerationRequest
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_json())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    return tmp_path


def test_the_drafter_proposes_the_answers_of_make_data(folder: Path) -> None:
    row = {"nlq": "errors, last hour", "cols": ["a"], "query": {"time_range": 3600}}
    (folder / "train.jsonl").write_text((json.dumps(row) + "\n") * 60)
    lines = answer_lines(folder / "train.jsonl", count=60, seed=0)
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_draft_table(folder / "answers.jsonl", folder)
    assert len(NgramTable.load(folder / DRAFT_TABLE)) > 0
    drafter = make_drafter(
        Settings(weights_dir=folder), DraftModelLoader(TOKENIZER, lambda: torch.empty(0, 0)), LinearCost(0.03)
    )
    drafter.begin_step(1)
    drafts = drafter.propose(Request(GenerationRequest("r", (5, 6)), seed=0), 40)
    assert TOKENIZER.decode(drafts).startswith('{"time_range": 3600}')


@pytest.mark.parametrize("line", ['{"calculations": []}', "not json", '{"answer": 1}', "[]"])
def test_an_invalid_line_is_named(folder: Path, line: str) -> None:
    good = json.dumps({"answer": "b"})
    (folder / "answers.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(CheckpointError, match=r"answers\.jsonl:2 is not"):
        write_draft_table(folder / "answers.jsonl", folder)
