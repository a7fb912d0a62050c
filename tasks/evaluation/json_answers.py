"""Judges answers that are JSON of a schema by their fields, and all others as text.

A field is a leaf with the path to it: a text, number, boolean or null, or an object or list that is empty. Items of a
list have the same path (`lines[].sku`), wherever in the list they stand, and count as often as they occur. So an item
in the wrong place costs nothing here (exact match sees it), and which fields make up one item is not looked at. 1 and
1.0 are the same number.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from jsonschema import ValidationError
from jsonschema.validators import validator_for

from serving.constraints import JsonSchemaConstraint
from tasks.confidence import WHOLE, child
from tasks.errors import TaskFileError
from tasks.evaluation.cases import Case, Counts, RefusedReferenceError, Score, collect, read_records
from tasks.json_text import WrittenFloat, write_answer

_EXPECTED: Final = 'a line is {"input": {the inputs of predict}, "output": JSON or text, "category": text (optional)}'
_EXPECTED_INPUT: Final = _EXPECTED.replace("JSON or text", "anything (optional)")
Field = tuple[str, str]  # path, canonical JSON of the leaf
_SEPARATORS: Final = ((", ", ": "), (",", ":"), (",", ": "))


@dataclass(frozen=True, slots=True)
class JsonEvaluation:
    """See `tasks.evaluation.cases.Evaluation`.

    Args:
        name: the task's name.
        only_input: the input that a case may give as a plain text; None where there are several.
        schema_of: gives the schema of the answer to a case's inputs; None for free text.
        usual_inputs: inputs that a case has unless it says otherwise.
    """

    name: str
    only_input: str | None
    schema_of: Callable[[Mapping[str, Any]], Any]
    usual_inputs: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})  # the likeliest tokens

    def read_cases(self, path: Path, limit: int | None = None) -> tuple[list[Case], list[str]]:
        """See `Evaluation.read_cases`."""

        def make(number: int, record: Any) -> Case:
            try:
                return self._case(number, record)
            except ValidationError as error:
                raise RefusedReferenceError(f"the reference is not of the schema: {error.message}") from error

        records = read_records(path, f"write one: {_EXPECTED}")
        return collect(path, records, make, expected=_EXPECTED, limit=limit)

    def read_inputs(self, path: Path) -> list[Mapping[str, Any]]:
        """See `Evaluation.read_inputs`."""
        records = read_records(path, f"write one: {_EXPECTED_INPUT}")
        return collect(path, records, lambda _, record: self._inputs(record), expected=_EXPECTED_INPUT, limit=None)[0]

    def _case(self, number: int, record: Mapping[str, Any]) -> Case:
        inputs, reference, category = self._inputs(record), record["output"], record.get("category")
        schema = self.schema_of(inputs)
        if schema is not None:
            reference = _json_reference(schema, reference)
        elif not isinstance(reference, str):
            raise TypeError(f"output is a {type(reference).__name__}, and the task answers with text")
        return Case(number, inputs, reference, category, schema)

    def _inputs(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        given = record["input"]
        if unknown := record.keys() - {"input", "output", "category"}:
            raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
        inputs = {self.only_input: given} if isinstance(given, str) and self.only_input else given
        if not isinstance(inputs, dict):
            raise TypeError(f"input is a {type(given).__name__}, and the task has several inputs")
        return inputs

    def reference_text(self, case: Case, constraint: Any) -> str:
        """JSON with the separators of the task, or the text; see `Evaluation.reference_text`."""
        if case.schema is None or not isinstance(constraint, JsonSchemaConstraint):
            return str(case.reference)
        patterns = constraint.item_separator, constraint.key_separator
        for separators in _SEPARATORS:
            if all(re.fullmatch(pattern, text) for pattern, text in zip(patterns, separators, strict=True)):
                return write_answer(case.reference, *separators)
        raise TaskFileError(f"no usual separators match {patterns} of the task file; give --calibration instead")

    def score(self, case: Case, text: str, error: str | None) -> Score:
        """Whether an answer is valid (JSON of the schema, or a text that the task returned) and equals the reference.

        JSON values are equal in any order of keys, texts apart from outer white space.
        """
        if case.schema is not None:
            return _score_json(case, text, error)
        is_exact = error is None and text.strip() == case.reference.strip()
        return _score(case, case.reference, text, error is None, is_exact, {}, error)


def _json_reference(schema: Any, output: Any) -> Any:
    """The value itself, or the one that its text is JSON of."""
    if isinstance(output, str):
        try:
            spelled = json.loads(output, parse_float=WrittenFloat)
            _validate(schema, spelled)
            return spelled
        except (ValueError, ValidationError):
            pass
    _validate(schema, output)
    return output


def _validate(schema: Any, value: Any) -> None:
    """Validate a value against a JSON Schema, in the schema's own draft.

    Raises:
        jsonschema.ValidationError: it is not valid.
    """
    validator_for(schema)(schema).validate(value)


def _score_json(case: Case, text: str, error: str | None) -> Score:
    reference = canonical(case.reference)
    try:
        value = json.loads(text)
    except ValueError as problem:
        counts = compare_fields(case.reference, Counter())
        return _score(case, reference, text, False, False, counts, error or f"not JSON: {problem}")
    try:
        _validate(case.schema, value)
    except ValidationError as problem:
        error = error or problem.message
    answer, counts = canonical(value), compare_fields(case.reference, fields(value))
    found = _score(case, reference, answer, error is None, answer == reference, counts, error)
    return replace(found, fields=right_fields(value, case.reference))


def _score(
    case: Case, reference: str, answer: str, is_valid: bool, is_exact: bool, counts: Counts, problem: str | None
) -> Score:
    texts = [value for value in case.inputs.values() if isinstance(value, str)]
    question = texts[0] if len(case.inputs) == 1 and texts else json.dumps(dict(case.inputs), ensure_ascii=False)
    return Score(case, question, reference, answer, {"valid": is_valid, "exact": is_exact}, counts, problem)


def fields(value: Any) -> Counter[Field]:
    """The fields of a value as a multiset."""
    return Counter(_fields("", value))


def right_fields(answer: Any, reference: Any) -> dict[str, bool]:
    """By pointer (`tasks.confidence`), whether the reference has each field of an answer too, wherever in its list.

    Here an object is a field too, which is right for its keys, and a list for the number of its items.
    """
    wanted = Counter((path, own) for _, path, own in _pointed(reference, WHOLE, WHOLE))
    found = {}
    for pointer, path, own in _pointed(answer, WHOLE, WHOLE):
        found[pointer] = wanted[path, own] > 0
        wanted[path, own] -= 1
    return found


def canonical(value: Any) -> str:
    """JSON text that is the same for equal values: keys sorted, whole numbers without a fraction."""
    return json.dumps(_whole_numbers(value), ensure_ascii=False, sort_keys=True)


def compare_fields(reference: Any, answer: Counter[Field]) -> Counts:
    """What is right, given and expected, by path."""
    expected = fields(reference)
    right = expected & answer
    counted = [_by_path(found) for found in (right, answer, expected)]
    paths = dict.fromkeys(path for path, _ in [*expected, *answer])
    return {path: (counted[0][path], counted[1][path], counted[2][path]) for path in paths}


def _fields(path: str, value: Any) -> Iterator[Field]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _fields(f"{path}.{name}" if path else name, part)
    elif isinstance(value, list) and value:
        for part in value:
            yield from _fields(f"{path}[]", part)
    else:
        yield path, canonical(value)


def _pointed(value: Any, pointer: str, path: str) -> Iterator[tuple[str, str, str]]:
    """The pointer of each field, its path, which is the same for all items of a list, and what it says itself."""
    if isinstance(value, dict):
        yield pointer, path, f"keys {canonical(sorted(value))}"
        for name, part in value.items():
            yield from _pointed(part, child(pointer, name), child(path, name))
    elif isinstance(value, list):
        yield pointer, path, f"{len(value)} items"
        for index, part in enumerate(value):
            yield from _pointed(part, child(pointer, index), child(path, "-"))
    else:
        yield pointer, path, canonical(value)


def _by_path(found: Counter[Field]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for (path, _), count in found.items():
        counted[path] += count
    return counted


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
