"""Makes answers calls of functions: the schema of an answer that must be one, and the reader of such an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue

Schema = dict[str, JsonValue]
_NO_PARAMETERS: Final[Schema] = {"type": "object", "properties": {}, "additionalProperties": False}
_VALUES: Final = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
# Keywords whose values have schemas by names, which may be those of keywords.
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_HEAD: Final = re.compile(r'\{"name":[ \t]*("(?:[^"\\]|\\.)*"),[ \t]*"arguments":')


class Function(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


def call_schema(functions: Sequence[Function]) -> Schema:
    """The schema of an answer that calls a function.

    For one function the answer is its arguments. For several it also has the name of the one that the model chose.
    """
    schemas = [function.parameters or _NO_PARAMETERS for function in functions]
    if len(functions) == 1:
        return schemas[0]
    calls: list[JsonValue] = []
    for number, (function, schema) in enumerate(zip(functions, schemas, strict=True)):
        arguments = _moved(schema, f"#/anyOf/{number}/properties/arguments")
        properties: Schema = {"name": {"const": function.name}, "arguments": arguments}
        required: list[JsonValue] = ["name", "arguments"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return {"anyOf": calls}


class CallReader:
    """Reads an answer to `call_schema` while it is written.

    Args:
        functions: the functions of the schema.
    """

    def __init__(self, functions: Sequence[Function]) -> None:
        self._is_choice = len(functions) > 1
        self._held = ""
        self.name = None if self._is_choice else functions[0].name
        """The name of the function that is called, once the answer says it."""

    def push(self, text: str) -> str:
        """What new text of the answer adds to the arguments."""
        if not self._is_choice:
            return text
        self._held += text
        if self.name is None:
            match = _HEAD.match(self._held)
            if match is None:
                return ""
            self.name = str(json.loads(match[1]))
            self._held = self._held[match.end() :]
        # The last brace belongs to the call, not to the arguments.
        ready, self._held = self._held[:-1], self._held[-1:]
        return ready

    def finish(self, *, is_complete: bool) -> str:
        """The rest of the arguments; of an answer that was cut, also its last character."""
        return "" if is_complete or self.name is None else self._held


def _moved(schema: JsonValue, place: str) -> JsonValue:
    """A schema whose references to its own parts still hold at a place inside another one."""
    match schema:
        case dict():
            return {keyword: _moved_value(keyword, value, place) for keyword, value in schema.items()}
        case list():
            return [_moved(item, place) for item in schema]
    return schema


def _moved_value(keyword: str, value: JsonValue, place: str) -> JsonValue:
    if keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    if keyword in _VALUES:
        return value
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: _moved(one, place) for name, one in value.items()}
    return _moved(value, place)
