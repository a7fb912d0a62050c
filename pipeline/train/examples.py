"""Read training examples: cases of a task as token ids, and Honeycomb's questions as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.evaluate.calibration_cases import case_tokens
from pipeline.train.packing import TokenizedExample
from serving.text import Tokenizer
from tasks.honeycomb.options import HoneycombOptions
from tasks.honeycomb.prompt import build_prompt


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its columns, and the canonical query that answers it."""

    nlq: str
    cols: tuple[str, ...]
    query: str


def read_questions(path: Path) -> list[Question]:
    """The questions of a JSONL file of {"nlq", "cols", "query"}, in file order."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    return [Question(r["nlq"], tuple(r["cols"]), _query_text(r["query"])) for r in records]


def tokenize_questions(
    path: Path, folder: Path, tokenizer: Tokenizer
) -> Iterator[tuple[dict[str, str], list[int], list[int]]]:
    """The inputs of each question of a Honeycomb file, the tokens of its prompt, and those of its query as it is there.

    Raises:
        TaskFileError: the folder has no task.json of the Honeycomb task.
    """
    template = HoneycombOptions.load(folder).prompt
    for example in read_questions(path):
        prompt = tokenizer.encode(build_prompt(example.nlq, example.cols, template))
        inputs = {"nlq": example.nlq, "cols": json.dumps(example.cols, ensure_ascii=False)}
        yield inputs, prompt, tokenizer.encode(example.query, add_bos=False)


def _query_text(query: Any) -> str:
    return query if isinstance(query, str) else json.dumps(query, ensure_ascii=False)


def tokenize_cases(path: Path, base: Path, task: Path | None, limit: int | None) -> Sequence[TokenizedExample]:
    """The prompt of each case as the task makes it, and its answer with the end token, tokenized apart as when serving.

    Args:
        path: cases as scripts/evaluate takes them.
        base: folder of the checkpoint, with its tokenizer.
        task: a task file; None for the one in the base's folder.
        limit: only the first cases.

    Raises:
        CaseFileError, CheckpointError, TaskError: see `case_tokens`.
    """
    return [
        TokenizedExample(tuple(tokens[:start]), tuple(tokens[start:]))
        for tokens, start in case_tokens(path, base, task, limit)
    ]
