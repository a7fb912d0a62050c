"""Calibration texts of a task's cases: what the model reads and should write, in the task's own prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.evaluate.acceptance import AcceptanceCase, is_acceptance_file, read_acceptance_cases
from pipeline.evaluate.cases import Case, CaseFileError, read_cases
from pipeline.evaluate.task_cases import TaskCase, read_task_cases
from pipeline.evaluate.task_folder import task_folder
from pipeline.evaluate.task_kinds import task_kind
from pipeline.weights.calibration import end_token, in_pieces
from pipeline.weights.errors import CheckpointError
from serving.constraints import JsonSchemaConstraint
from serving.text import Tokenizer
from tasks.errors import TaskError
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.options import HoneycombOptions
from tasks.honeycomb.query import Query
from tasks.json_text import write_answer
from tasks.task import Task, create_task, task_name

_SEPARATORS = ((", ", ": "), (",", ":"), (",", ": "))


def case_tokens(file: Path, model: Path, task: Path | None, limit: int | None = None) -> list[tuple[list[int], int]]:
    """For each case the token ids of its prompt, its reference answer and the end token, and where the answer begins.

    Of several accepted answers the first is the reference.

    Args:
        file: cases as scripts/evaluate takes them.
        model: folder of the checkpoint.
        task: a task file to use instead of the checkpoint's own.
        limit: only the first cases.

    Raises:
        CaseFileError: the file cannot be used.
        CheckpointError: the checkpoint names no end token.
        TaskError: the task file is wrong, or the task refuses a case.
    """
    tokenizer, end = Tokenizer.from_dir(model), end_token(model)
    found = []
    with task_folder(model, task) as folder:
        asked = create_task(folder, tokenizer)
        for prompt, answer in _prompts_and_answers(file, folder, asked, limit):
            found.append(([*prompt, *tokenizer.encode(answer), end], len(prompt)))
    return found


def calibration_cases(file: Path, model: Path, task: Path | None, max_tokens: int) -> list[list[int]]:
    """The tokens of cases for the AWQ search, in pieces; see `case_tokens` and `in_pieces`.

    Raises:
        CheckpointError: whatever is wrong.
    """
    try:
        return in_pieces(file, (tokens for tokens, _ in case_tokens(file, model, task)), max_tokens)
    except (CaseFileError, TaskError) as error:
        raise CheckpointError(str(error)) from error


def _prompts_and_answers(
    file: Path, folder: Path, task: Task, limit: int | None
) -> Iterator[tuple[tuple[int, ...], str]]:
    if task_name(folder) == "honeycomb":
        surface = HoneycombOptions.load(folder).surface
        for case, reference in _queries(file, limit):
            inputs = {"nlq": case.nlq, "cols": json.dumps(case.columns, ensure_ascii=False)}
            yield task.prepare(inputs).token_ids, _query_text(reference, surface)
        return
    for line in read_task_cases(file, task_kind(folder), limit)[0]:
        prompt = task.prepare(line.inputs)
        yield prompt.token_ids, answer_text(line, prompt.constraint)


def _queries(file: Path, limit: int | None) -> Iterator[tuple[Case | AcceptanceCase, Query]]:
    if is_acceptance_file(file):
        for accepting in read_acceptance_cases(file, limit)[0]:
            yield accepting, accepting.accepted[0]
        return
    for case in read_cases(file, limit)[0]:
        yield case, case.reference


def _query_text(reference: Query, surface: str) -> str:
    text = canonical_json(reference)
    return text if surface == "json" else f'"{json.loads(text)!r}"'


def answer_text(case: TaskCase, constraint: Any) -> str:
    """The reference of a case as the model writes it: JSON with the separators of the task.

    Args:
        case: of a schema or chat task.
        constraint: of the case's prompt.

    Raises:
        CheckpointError: the task's separators are none of the usual ones.
    """
    if case.schema is None or not isinstance(constraint, JsonSchemaConstraint):
        return str(case.reference)
    patterns = constraint.item_separator, constraint.key_separator
    for separators in _SEPARATORS:
        if all(re.fullmatch(pattern, text) for pattern, text in zip(patterns, separators, strict=True)):
            return write_answer(case.reference, *separators)
    raise CheckpointError(f"no usual separators match {patterns} of the task file; give --calibration instead")
