"""Reads training examples: cases of a task as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.evaluate.case_tokens import case_tokens
from pipeline.train.packing import TokenizedExample


def tokenize_cases(path: Path, base: Path, task: Path | None, limit: int | None) -> Sequence[TokenizedExample]:
    """The prompt of each case as the task makes it, and its answer with the end token, tokenized apart as when serving.

    Args:
        path: cases as scripts/evaluate takes them.
        base: folder of the checkpoint, with its tokenizer.
        task: a task file; None for the one in the base's folder.
        limit: only the first cases.

    Raises:
        CheckpointError, TaskError: see `case_tokens`.
    """
    return [
        TokenizedExample(tuple(tokens[:start]), tuple(tokens[start:]))
        for tokens, start in case_tokens(path, base, task, limit)
    ]
