"""Makes the inputs of a prediction from the columns of a row, and checks them as Cog's server does.

inputs = RowInputs(schema, columns=("question", "cols"), sources={"nlq": "question"}, constants=["max_tokens=200"])
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft7Validator

from pipeline.batch.errors import BatchError
from pipeline.batch.rows import Row
from pipeline.package.command_inputs import BadInputError, read_value, resolve_rule


class RowInputs:
    """Which input comes from which column.

    Args:
        schema: the package's OpenAPI document.
        sources: column by input name; an input without an entry comes from the column of its own name, if there is one.
        constants: `NAME=VALUE`, for inputs that are the same in every row.

    Raises:
        BatchError: an input or column does not exist, or a required input has neither column nor constant.
    """

    def __init__(
        self, schema: dict[str, Any], columns: Sequence[str], sources: Mapping[str, str], constants: Sequence[str]
    ) -> None:
        declared = schema["components"]["schemas"]["Input"]
        self._rules = {name: resolve_rule(rule, schema) for name, rule in declared["properties"].items()}
        self._defaults = {name: rule["default"] for name, rule in self._rules.items() if "default" in rule}
        self._required = declared.get("required", [])
        self.constants = self._read_constants(constants)
        for name, column in sources.items():
            self._check_name(name)
            if column not in columns:
                raise BatchError(f"--input {name}={column}: no such column; there are {', '.join(columns)}")
        by_name = {name: name for name in self._rules if name in columns and name not in self.constants}
        self.sources = by_name | dict(sources)
        if both := sorted(self.sources.keys() & self.constants.keys()):
            raise BatchError(f"{both[0]} has both --input and --set; give one of them")
        if missing := [n for n in self._required if n not in self.sources and n not in self.constants]:
            raise BatchError(
                f"no column for the input {missing[0]}; give --input {missing[0]}=COLUMN or --set "
                f"{missing[0]}=VALUE; there are the columns {', '.join(columns)}"
            )

    def of(self, row: Row) -> dict[str, Any]:
        """The inputs of one row, with defaults filled in.

        Null means left out, as does an empty text for an input that is no text. A text is converted to the type of
        its input, and a list or object for an input that is a text becomes its JSON.

        Raises:
            BadInputError: an input is missing or wrong.
        """
        given = dict(self.constants)
        for name, column in self.sources.items():
            if (value := self._convert(name, row.values.get(column))) is not None:
                given[name] = value
        for name in self._required:
            if name not in given:
                raise BadInputError(f"{name} is missing: the column {self.sources[name]} has no value")
        return {**self._defaults, **given}

    def _convert(self, name: str, value: Any) -> Any:
        rule = self._rules[name]
        is_text = any(one.get("type") == "string" for one in rule.get("anyOf", [rule]))
        if isinstance(value, str):
            return read_value(name, value, rule) if value or is_text else None
        if is_text and isinstance(value, list | dict):
            value = json.dumps(value, ensure_ascii=False)
        if value is not None:
            _validate(name, value, rule)
        return value

    def _read_constants(self, pairs: Sequence[str]) -> dict[str, Any]:
        constants = {}
        for pair in pairs:
            name, separator, text = pair.partition("=")
            if not separator:
                raise BatchError(f"--set {pair}: has no '='; write --set NAME=VALUE")
            self._check_name(name)
            try:
                constants[name] = read_value(name, text, self._rules[name])
            except BadInputError as error:
                raise BatchError(f"--set {error}") from error
        return constants

    def _check_name(self, name: str) -> None:
        if name not in self._rules:
            raise BatchError(f"{name}: the model has no such input; there are {', '.join(self._rules)}")


def _validate(name: str, value: Any, rule: dict[str, Any]) -> None:
    for error in Draft7Validator(rule).iter_errors(value):
        raise BadInputError(f"{name}: {error.message[:200]}")
