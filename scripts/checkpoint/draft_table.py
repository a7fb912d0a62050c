"""The tables that the drafter of the paged engine starts from.

Owns: the way from questions and answers of the training data to `draft.ngrams` and `draft.cues`. Knows
nothing of how drafts are made.

    write_draft_tables(Path("adapters/honeycomb-nlq/answers.jsonl"), Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

import json
from pathlib import Path

from serving.cues import CUE_TABLE, CueTable
from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer

# In the adapter's folder: {"question": …, "answer": …} a line, the answer as the model is to write it.
ANSWERS = "answers.jsonl"


def write_draft_tables(answers: Path, folder: Path) -> None:
    """Count what `answers` has, in the tokens of the checkpoint in `folder`, and put the tables there."""
    tokenizer = Tokenizer.from_dir(folder)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_bos=False)

    lines = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    pairs = [
        ([tokenizer.without_space(token) for token in encode(line["question"])], encode(line["answer"]))
        for line in lines
    ]
    NgramTable.build(answer for _, answer in pairs).save(folder / DRAFT_TABLE)
    CueTable.build(pairs).save(folder / CUE_TABLE)
