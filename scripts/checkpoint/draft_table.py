"""The table of n-grams that the drafter of the paged engine starts from.

Owns: the way from training answers to `draft.ngrams`. Knows nothing of how drafts are made.

    write_draft_table(Path("adapters/honeycomb-nlq/answers.jsonl"), Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

from pathlib import Path

from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer

ANSWERS = "answers.jsonl"  # in the adapter's folder: an answer a line, as the model is to write it


def write_draft_table(answers: Path, folder: Path) -> None:
    """Count the n-grams of `answers`, in the tokens of the checkpoint in `folder`, and put them there."""
    tokenizer = Tokenizer.from_dir(folder)
    lines = answers.read_text(encoding="utf-8").splitlines()
    NgramTable.build(tokenizer.encode(line, add_bos=False) for line in lines).save(folder / DRAFT_TABLE)
