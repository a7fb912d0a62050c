"""The tables that the drafter of the paged engine starts from.

Owns: the way from questions and answers of the training data to `draft.ngrams` and `draft.cues`. Knows
nothing of how drafts are made.

    write_draft_tables(Path("adapters/honeycomb-nlq/answers.jsonl"), Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from scripts.checkpoint.errors import CheckpointError
from serving.cues import CUE_TABLE, CueTable
from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer

# In the adapter's folder: {"question": …, "answer": …} a line, the answer as the model is to write it.
ANSWERS = "answers.jsonl"


def write_draft_tables(answers: Path, folder: Path) -> None:
    """Count what `answers` has, in the tokens of the checkpoint in `folder`, and put the tables there.

    Raises:
        CheckpointError: a line of `answers` is something else.
    """
    tokenizer = Tokenizer.from_dir(folder)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_bos=False)

    pairs = [
        ([tokenizer.without_space(token) for token in encode(question)], encode(answer))
        for question, answer in _read(answers)
    ]
    NgramTable.build(answer for _, answer in pairs).save(folder / DRAFT_TABLE)
    CueTable.build(pairs).save(folder / CUE_TABLE)


def _read(path: Path) -> Iterator[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # a line may hold other line separators
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            question, answer = record["question"], record["answer"]
        except (ValueError, KeyError, TypeError):
            question = answer = None
        if not isinstance(question, str) or not isinstance(answer, str):
            raise CheckpointError(
                f'{path}:{number} is not {{"question": …, "answer": …}}; write it anew with '
                "scripts/make_data --answers"
            )
        yield question, answer
