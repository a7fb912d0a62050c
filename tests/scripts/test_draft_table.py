"""From training data to the tables that the drafter starts from, and lines that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datagen.extracts import answer_lines
from scripts.checkpoint.draft_table import write_draft_tables
from scripts.checkpoint.errors import CheckpointError
from serving.config import Settings
from serving.cues import CUE_TABLE, CueTable
from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.paged.choices import make_drafter
from serving.paged.request import Request
from serving.types import GenerationRequest
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_json())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    return tmp_path


def training_data(path: Path) -> Path:
    """Questions that differ in one word, and answers in one number."""
    units = (("hour", 3600), ("day", 86400)) * 30
    rows = [{"nlq": f"errors, last {unit}", "cols": ["a"], "query": {"time_range": n}} for unit, n in units]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_make_data_extracts_makes_the_drafter_follow_the_question(folder: Path) -> None:
    lines = answer_lines(training_data(folder / "train.jsonl"), count=60, seed=0)
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_draft_tables(folder / "answers.jsonl", folder)
    assert len(NgramTable.load(folder / DRAFT_TABLE)) > 0
    assert len(CueTable.load(folder / CUE_TABLE)) > 0
    drafter = make_drafter(Settings(weights_dir=folder), TOKENIZER)
    for unit, answer in (("hour", '{"time_range": 3600}'), ("day", '{"time_range": 86400}')):
        drafter.begin_step(num_requests=1, num_rows=1)
        prompt = TOKENIZER.encode(f"errors, last {unit}", add_bos=False)
        drafts = drafter.propose(Request(GenerationRequest(unit, tuple(prompt)), seed=0), 40)
        assert TOKENIZER.decode(drafts).startswith(answer)


@pytest.mark.parametrize("line", ['{"calculations": []}', "not json", '{"question": 1, "answer": "a"}', "[]"])
def test_a_line_that_is_something_else_is_named(folder: Path, line: str) -> None:
    good = json.dumps({"question": "a", "answer": "b"})
    (folder / "answers.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(CheckpointError, match=r"answers\.jsonl:2 is not"):
        write_draft_tables(folder / "answers.jsonl", folder)
