"""Turns cases of a task into token ids, in the prompt of the task: for training, comparisons and the AWQ search."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.evaluate.task_folder import task_folder
from pipeline.weights.calibration import BLOCK_TOKENS, end_token, in_pieces
from pipeline.weights.errors import CheckpointError
from serving.text import Tokenizer
from tasks.errors import TaskError
from tasks.task import create_evaluation, create_task


def case_tokens(file: Path, model: Path, task: Path | None, limit: int | None = None) -> list[tuple[list[int], int]]:
    """For each case the token ids of its prompt, its reference answer and the end token, and where the answer begins.

    Of several accepted answers the first is the reference.

    Args:
        file: cases as scripts/evaluate takes them.
        model: folder of the checkpoint.
        task: a task file to use instead of the checkpoint's own.
        limit: only the first cases.

    Raises:
        CheckpointError: the checkpoint names no end token.
        TaskError: the file of cases or the task file is wrong, or the task refuses a case.
    """
    tokenizer, end = Tokenizer.from_dir(model), end_token(model)
    found = []
    with task_folder(model, task) as folder:
        asked, evaluation = create_task(folder, tokenizer), create_evaluation(folder)
        for case in evaluation.read_cases(file, limit)[0]:
            prompt = asked.prepare(case.inputs)
            answer = evaluation.reference_text(case, prompt.constraint)
            found.append(([*prompt.token_ids, *tokenizer.encode(answer), end], len(prompt.token_ids)))
    return found


def calibration_cases(file: Path, model: Path, task: Path | None, max_tokens: int) -> list[list[int]]:
    """The tokens of cases for the AWQ search, in pieces; see `case_tokens` and `in_pieces`.

    Few cases are repeated until they fill a block, which leaves the means that the search takes as they are.

    Raises:
        CheckpointError: whatever is wrong.
    """
    try:
        found = [tokens for tokens, _ in case_tokens(file, model, task)]
        times = math.ceil(BLOCK_TOKENS / max(1, sum(map(len, found))))
        return in_pieces(file, found * times, max_tokens)
    except TaskError as error:
        raise CheckpointError(str(error)) from error
