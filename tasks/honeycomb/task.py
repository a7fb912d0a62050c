"""The Honeycomb task: from a question and column names to a Honeycomb query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.constraints import LarkConstraint
from serving.text import Tokenizer
from serving.types import SamplingParams
from tasks.evaluation.cases import Evaluation
from tasks.honeycomb.canonical import canonical_json, ordered
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.grammar import answer_grammar
from tasks.honeycomb.live import QueryReader
from tasks.honeycomb.options import HoneycombOptions
from tasks.honeycomb.prompt import DRAFT_MARKERS, build_prompt, check_nlq
from tasks.honeycomb.query import parse_query
from tasks.honeycomb.surface import as_written
from tasks.task import Prompt

DEFAULT_MAX_TOKENS = 512


class HoneycombTask:
    """See `tasks.task`: `Task`, and all that a task may have besides. Inputs: `nlq`, `cols` and `max_tokens`."""

    long_inputs = "nlq and cols"
    shorten_hint = "give fewer columns"

    def __init__(self, options: HoneycombOptions, tokenizer: Tokenizer) -> None:
        self.options = options
        self._tokenizer = tokenizer

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """See `Task.prepare`."""
        question, columns = check_nlq(inputs["nlq"]), parse_columns(inputs["cols"])
        text = build_prompt(question, columns, self.options.prompt)
        return Prompt(
            token_ids=tuple(self._tokenizer.encode(text)),
            # JSON Schema accepts 1.0 as an integer, and Cog passes it on as a float.
            sampling=SamplingParams(max_tokens=int(inputs.get("max_tokens", DEFAULT_MAX_TOKENS))),
            constraint=LarkConstraint(answer_grammar(self.options, question, columns), is_trusted=True),
            reader=QueryReader(columns, self.options.surface),
        )

    def as_written(self, inputs: Mapping[str, Any], answer: str) -> str:
        """See `tasks.task.CorrectableTask`. Nothing is repaired: a person is told what is wrong."""
        query = parse_query(answer, parse_columns(inputs["cols"]))
        return as_written(canonical_json(query), self.options.surface)

    def as_learned(self, answer: str) -> str:
        """See `tasks.task.ConventionalTask`. Groups get an order, as they have in all training data."""
        return as_written(canonical_json(ordered(parse_query(answer, None))), self.options.surface)

    def draft_markers(self) -> tuple[str, ...]:
        """See `tasks.task.MarkedTask`."""
        return DRAFT_MARKERS[self.options.prompt]

    def read_examples(self, path: Path) -> Iterator[tuple[Mapping[str, Any], Sequence[int], Sequence[int]]]:
        """See `tasks.task.ExampleTask`. No grammar is made, which would take most of the time."""
        from tasks.honeycomb.evaluation.queries import written_answers  # duckdb, which is not in the image

        for inputs, query in written_answers(path):
            prompt = build_prompt(inputs["nlq"], json.loads(inputs["cols"]), self.options.prompt)
            yield inputs, self._tokenizer.encode(prompt), self._tokenizer.encode(query, add_bos=False)


def create(folder: Path, tokenizer: Tokenizer) -> HoneycombTask:
    """The task of a checkpoint.

    Raises:
        TaskFileError: its task.json is missing or invalid.
    """
    return HoneycombTask(HoneycombOptions.load(folder), tokenizer)


def example_inputs(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """See `tasks.task.TaskModule`."""
    return {"nlq": "slowest traces", "cols": '["name", "duration_ms"]'}


def predict_source(content: Mapping[str, Any]) -> str:
    """See `tasks.task.TaskModule`."""
    return Path(__file__).with_name("predict.py").read_text("utf-8")


def evaluation(folder: Path) -> Evaluation:
    """See `tasks.task.TaskModule`. Queries are compared by parts, and by the results of running them."""
    from tasks.honeycomb.evaluation.queries import QueryEvaluation  # duckdb, which is not in the image

    return QueryEvaluation(HoneycombOptions.load(folder).surface)
