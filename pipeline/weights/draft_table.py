"""Make the drafter's n-gram table from answers of the training data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pipeline.weights.errors import CheckpointError
from serving.drafting.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer

ANSWERS = "answers.jsonl"  # in the adapter's folder; lines {"answer": …}, answers as the model writes them


def write_draft_table(answers: Path, folder: Path) -> None:
    """Count the n-grams of `answers` in tokens of the checkpoint in `folder`, and write the table there.

    Raises:
        CheckpointError: a line of `answers` has another form.
    """
    tokenizer = Tokenizer.from_dir(folder)
    sequences = (tokenizer.encode(answer, add_bos=False) for answer in _read(answers))
    NgramTable.build(sequences).save(folder / DRAFT_TABLE)


def _read(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # a line may contain other line separators
    for number, line in enumerate(lines, start=1):
        try:
            answer = json.loads(line)["answer"]
        except (ValueError, KeyError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise CheckpointError(
                f'{path}:{number} is not {{"answer": …}}; write the file again with scripts/dev/make_data --answers'
            )
        yield answer
