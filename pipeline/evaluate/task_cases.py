"""Read the cases of schema and chat tasks: inputs and reference answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import ValidationError
from jsonschema.validators import validator_for

from pipeline.evaluate.cases import RefusedReference, collect_cases, read_records
from pipeline.evaluate.task_kinds import TaskKind
from tasks.json_text import WrittenFloat

_EXPECTED = 'a line is {"input": {the inputs of predict}, "output": JSON or text, "category": text (optional)}'


@dataclass(frozen=True, slots=True)
class TaskCase:
    """One case.

    Args:
        line: in its file; identifies the case in results.
        inputs: by the names of predict's parameters.
        reference: the right answer: a JSON value where there is a schema, else a text.
        schema: of the answer; None where it is free text.
        category: that results are shown by.
    """

    line: int
    inputs: Mapping[str, Any]
    reference: Any
    schema: Any
    category: str | None = None


def read_task_cases(path: Path, kind: TaskKind, limit: int | None = None) -> tuple[list[TaskCase], list[str]]:
    """The cases, and a message for each line whose reference is not a valid answer.

    Raises:
        CaseFileError: a line has another format, or no line can be used.
    """

    def make(number: int, record: Any) -> TaskCase:
        try:
            return _case(number, record, kind)
        except ValidationError as error:
            raise RefusedReference(f"the reference is not of the schema: {error.message}") from error

    records = read_records(path, f"write one: {_EXPECTED}")
    return collect_cases(path, records, make, expected=_EXPECTED, limit=limit)


def read_task_inputs(path: Path, kind: TaskKind) -> list[Mapping[str, Any]]:
    """The inputs of each line, by the names of predict's parameters; lines need no output.

    Raises:
        CaseFileError: a line has another format, or there is none.
    """
    expected = _EXPECTED.replace("JSON or text", "anything (optional)")
    records = read_records(path, f"write one: {expected}")
    return collect_cases(path, records, lambda _, record: _inputs(record, kind), expected=expected, limit=None)[0]


def validate(schema: Any, value: Any) -> None:
    """Validate a value against a JSON Schema, in the schema's own draft.

    Raises:
        jsonschema.ValidationError: it is not valid.
    """
    validator_for(schema)(schema).validate(value)


def _case(number: int, record: Mapping[str, Any], kind: TaskKind) -> TaskCase:
    inputs, reference, category = _inputs(record, kind), record["output"], record.get("category")
    schema = kind.schema_of(inputs)
    if schema is not None:
        reference = _json_reference(schema, reference)
    elif not isinstance(reference, str):
        raise TypeError(f"output is a {type(reference).__name__}, and the task answers with text")
    return TaskCase(number, inputs, reference, schema, category)


def _inputs(record: Mapping[str, Any], kind: TaskKind) -> Mapping[str, Any]:
    given = record["input"]
    if unknown := record.keys() - {"input", "output", "category"}:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    inputs = {kind.only_input: given} if isinstance(given, str) and kind.only_input else given
    if not isinstance(inputs, dict):
        raise TypeError(f"input is a {type(given).__name__}, and the task has several inputs")
    return inputs


def _json_reference(schema: Any, output: Any) -> Any:
    """The value itself, or the one that its text is JSON of."""
    if isinstance(output, str):
        try:
            spelled = json.loads(output, parse_float=WrittenFloat)
            validate(schema, spelled)
            return spelled
        except (ValueError, ValidationError):
            pass
    validate(schema, output)
    return output
