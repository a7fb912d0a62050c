"""Makes answers calls of functions: the schema of an answer that must be one, and the readers of answers with calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, JsonValue

Schema = dict[str, JsonValue]
_NO_PARAMETERS: Final[Schema] = {"type": "object", "properties": {}, "additionalProperties": False}
_VALUES: Final = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
# Keywords whose values have schemas by names, which may be those of keywords.
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_CALL: Final = "<tool_call>"  # begins each line of a chat package's answer that is a call
_LINE: Final = re.compile(_CALL + r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')
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


@dataclass(slots=True)
class CallPart:
    """New text of one call.

    Args:
        index: the number of the call among those of the answer.
        arguments: new text of its arguments.
        name: the function's name, where it was not known before.
    """

    index: int
    arguments: str
    name: str | None = None


class TextReader:
    """Reads an answer that is a text, while it is written."""

    calls = 0
    """The number of calls that are complete, if the answer is."""

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """What more text of the answer adds to its content, and to its calls."""
        return text, []

    def finish(self, *, is_complete: bool) -> tuple[str, list[CallPart]]:
        """What the end adds, of an answer that is complete or was cut."""
        return "", []


class ChosenCallsReader:
    """Reads an answer that is a text, then calls, each a line: `<tool_call>{"name": …, "arguments": …}`.

    Args:
        is_json: whether a text is JSON, which has no calls behind it, and may have their mark in it.
    """

    def __init__(self, *, is_json: bool = False) -> None:
        self._is_json = is_json  # until the first character has come
        self._is_text = False
        self._held = ""
        self._has_calls = self._is_open = False
        self.calls = 0

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """See `TextReader.push`."""
        if self._is_json and text:
            self._is_json, self._is_text = False, text[0] != _CALL[0]  # with which no JSON begins
        if self._is_text:
            return text, []
        self._held += text
        content = ""
        if not self._has_calls:
            at = self._held.find(_CALL)
            self._has_calls = at >= 0
            if at < 0:
                lengths = range(len(_CALL) - 1, -1, -1)
                at = len(self._held) - next(length for length in lengths if self._held.endswith(_CALL[:length]))
            content, self._held = self._held[:at], self._held[at:]
        parts: list[CallPart] = []
        while self._has_calls and (part := self._part()) is not None:
            if parts and parts[-1].index == part.index:
                parts[-1].arguments += part.arguments
            else:
                parts.append(part)
        return content, parts

    def finish(self, *, is_complete: bool) -> tuple[str, list[CallPart]]:
        """See `TextReader.finish`."""
        return "" if self._has_calls else self._held, []

    def _part(self) -> CallPart | None:
        """What can be read now; None for nothing."""
        if not self._is_open:
            head = _LINE.match(self._held)
            if head is None:
                return None
            self._is_open, self._held = True, self._held[head.end() :]
            return CallPart(self.calls, "", str(json.loads(head[1])))
        line, end, rest = self._held.partition("\n")
        # The last brace belongs to the call, not to the arguments.
        part = CallPart(self.calls, line[:-1])
        self._held = rest if end else line[-1:]
        if end:
            self._is_open = False
            self.calls += 1
        return part if end or part.arguments else None


class ForcedCallReader:
    """Reads an answer to `call_schema`."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._is_choice = len(functions) > 1
        self._held = ""
        self._name = None if self._is_choice else functions[0].name
        self._is_named = False  # whether the name has been shown
        self.calls = 1

    def push(self, text: str) -> tuple[str, list[CallPart]]:
        """See `TextReader.push`."""
        if not self._is_choice:
            return "", self._shown(text)
        self._held += text
        if self._name is None:
            match = _HEAD.match(self._held)
            if match is None:
                return "", []
            self._name = str(json.loads(match[1]))
            self._held = self._held[match.end() :]
        # The last brace belongs to the call, not to the arguments.
        ready, self._held = self._held[:-1], self._held[-1:]
        return "", self._shown(ready)

    def finish(self, *, is_complete: bool) -> tuple[str, list[CallPart]]:
        """See `TextReader.finish`."""
        return "", [] if is_complete or self._name is None else self._shown(self._held)

    def _shown(self, arguments: str) -> list[CallPart]:
        name = None if self._is_named else self._name
        self._is_named = True
        return [CallPart(0, arguments, name)] if arguments or name else []


AnswerReader = TextReader | ChosenCallsReader | ForcedCallReader


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
