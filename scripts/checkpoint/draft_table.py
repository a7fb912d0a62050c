"""The table that the drafter of the paged engine starts from.

Owns: the way from answers of the training data to `draft.ngrams`. Knows nothing of how drafts are made.

    write_draft_table(Path("adapters/honeycomb-nlq/answers.jsonl"), Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from scripts.checkpoint.errors import CheckpointError
from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.text import Tokenizer

# In the adapter's folder: {"question": …, "answer": …} a line, the answer as the model is to write it.
ANSWERS = "answers.jsonl"


def write_draft_table(answers: Path, folder: Path) -> None:
    """Count what `answers` has, in the tokens of the checkpoint in `folder`, and put the table there.

    Raises:
        CheckpointError: a line of `answers` is something else.
    """
    tokenizer = Tokenizer.from_dir(folder)
    sequences = (tokenizer.encode(answer, add_bos=False) for answer in _read(answers))
    NgramTable.build(sequences).save(folder / DRAFT_TABLE)


def _read(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # a line may hold other line separators
    for number, line in enumerate(lines, start=1):
        try:
            answer = json.loads(line)["answer"]
        except (ValueError, KeyError, TypeError):
            answer = None
        if not isinstance(answer, str):
            raise CheckpointError(
                f'{path}:{number} is not {{"answer": …}}; write it anew with scripts/make_data --answers'
            )
        yield answer
