"""Turns questions into requests of a checkpoint's task, and replies into a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.bench.protocol import Ask, Reply
from serving.constraints import JsonSchemaConstraint
from serving.text import Tokenizer
from serving.types import FinishReason
from tasks.errors import TaskError
from tasks.evaluation.json_answers import canonical
from tasks.honeycomb import ops
from tasks.honeycomb.canonical import comparison_key
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.query import parse_query
from tasks.task import create_task, task_name

Inputs = Mapping[str, Any]  # of one prediction, by name of predict's parameters


class Asker:
    """Prepares requests with a checkpoint's task: every engine gets the same prompt and the same constraint.

    Raises:
        TaskFileError: task.json is missing or wrong.
    """

    def __init__(self, weights: Path) -> None:
        self.task_name = task_name(weights)
        self._tokenizer = Tokenizer.from_dir(weights)
        self._task = create_task(weights, self._tokenizer)

    def ask(self, key: str, inputs: Inputs, max_tokens: int, *, as_schema: bool = False) -> Ask:
        """The greedy request for one question, with so many tokens to answer if the task's own limit is not lower.

        With `as_schema` it has a JSON schema, for an engine that makes its own grammars.

        Raises:
            InputError: the task refuses an input.
        """
        prompt = self._task.prepare(inputs)
        constraint = prompt.constraint
        if as_schema and self.task_name == "honeycomb":
            constraint = JsonSchemaConstraint(json.dumps(query_schema(parse_columns(inputs["cols"]))))
        return Ask(key, prompt.token_ids, min(max_tokens, prompt.sampling.max_tokens), constraint=constraint)

    def asks(self, questions: Sequence[Inputs], max_tokens: int, *, as_schema: bool = False) -> tuple[Ask, ...]:
        """Requests for several questions, with their indices as keys."""
        return tuple(self.ask(str(i), inputs, max_tokens, as_schema=as_schema) for i, inputs in enumerate(questions))

    def free(self, key: str, text: str, num_tokens: int) -> Ask:
        """A request to continue a text by so many tokens, without a grammar and without an end."""
        return Ask(key, tuple(self._tokenizer.encode(text)), num_tokens, min_tokens=num_tokens)

    def meaning(self, inputs: Inputs, reply: Reply) -> str | None:
        """A text that is equal for answers with the same meaning; None if the task would return an error."""
        if reply.error is not None:
            return None
        reader = self._task.prepare(inputs).reader
        try:
            return self.final_meaning(reader.push(reply.text) + reader.finish(FinishReason(reply.finish)))
        except TaskError:
            return None

    def final_meaning(self, text: str) -> str:
        """A text that is equal for answers with the same meaning, of an answer as predict returns it.

        Raises:
            TaskError: it is no valid answer.
        """
        if self.task_name == "honeycomb":
            return comparison_key(parse_query(text, None))
        try:
            return canonical(json.loads(text))
        except ValueError:
            return text


def query_schema(columns: Sequence[str]) -> dict[str, Any]:
    """A JSON schema of Honeycomb queries for these columns, keys in canonical order, as strict as a schema can be."""
    column, number = {"enum": list(columns)}, {"type": "number"}
    comparison, direction = {"enum": ops.COMPARISON_OPS}, {"enum": ops.DIRECTIONS}
    sortable = {"enum": [op for op in ops.OPS_WITH_COLUMN if op != ops.NOT_SORTABLE]}
    plain, seconds = {"enum": ops.OPS_WITHOUT_COLUMN}, {"type": "integer", "minimum": 1}
    value: dict[str, Any] = {"anyOf": [{"type": "string"}, number, {"type": "boolean"}]}
    filter_values = (
        {"op": {"enum": ops.EXISTENCE_OPS}},
        {"op": comparison, "value": value},
        {"op": {"enum": ops.STRING_OPS}, "value": {"type": "string"}},
        {"op": {"enum": ops.MEMBERSHIP_OPS}, "value": {"type": "array", "items": value, "minItems": 1}},
    )
    with_column = {"op": {"enum": ops.OPS_WITH_COLUMN}, "column": column}
    sorted_by = ({"op": plain}, {"op": sortable, "column": column}, {"column": column})
    compared = {"op": comparison, "value": number}
    properties = {
        "breakdowns": _list(column),
        "calculations": _list(_any_object({"op": plain}, with_column)),
        "filters": _list(_any_object(*({"column": column, **rest} for rest in filter_values))),
        "filter_combination": {"enum": ops.COMBINATIONS},
        "orders": _list(_any_object(*({**by, "order": direction} for by in sorted_by))),
        "havings": _list(
            _any_object({"calculate_op": plain, **compared}, {"calculate_op": sortable, "column": column, **compared})
        ),
        "limit": {"type": "integer", "minimum": 1, "maximum": ops.MAX_LIMIT},
        **dict.fromkeys(("time_range", "start_time", "end_time", "granularity"), seconds),
        "compare_time_offset_seconds": {"enum": ops.COMPARE_OFFSETS},
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def _any_object(*properties: dict[str, Any]) -> dict[str, Any]:
    """One of several objects that have exactly these properties."""
    closed = {"type": "object", "additionalProperties": False}
    return {"anyOf": [{**closed, "properties": choice, "required": list(choice)} for choice in properties]}
