"""Lets the model choose between a text and calls of the caller's tools, and reads what it wrote.

An answer with calls is shown as its text, and then a line for each call, whatever the model's own format is:
`<tool_call>{"name": "…", "arguments": {…}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from serving.constraints import CALL, PLAIN_BEGIN, PLAIN_MIDDLE, CallFormat, CallsConstraint, JsonSchemaConstraint
from serving.grammar import answer_checks
from serving.types import FinishReason
from tasks.bounds import schema_constraint
from tasks.chat.messages import Message
from tasks.errors import InputError, OutputError
from tasks.json_answer import JsonReader
from tasks.json_text import parse_json

_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_JSON_BEGINS: Final = '{["-0123456789tfn'
_ARGUMENTS: Final = ("arguments", "parameters")  # keys of a call's arguments in plain JSON
_ORDER: Final = ("name", "description", "parameters")
_KINDS: Final = {"type", "$ref", "allOf", "anyOf", "oneOf"}
_SYSTEM: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_BEFORE_PLAIN: Final = re.compile(r"\s*(`{1,3}\w*\s*)?(\[\s*)?$")  # in front of a call that is plain JSON
_HINT: Final = 'send {"type": "function", "function": {"name": "…", "parameters": {…}}}'


def read_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with the schemas of their parameters as objects, and with the keys in their usual order.

    Args:
        tools: the tools, as in OpenAI's API. A schema may be JSON text, which keeps the order of its properties: Cog's
            server sorts those of objects.

    Raises:
        InputError: a tool is no function with a name, or two have the same.
    """
    found = []
    for index, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise InputError(f"tools[{index}]", "is not a function with a name", _HINT)
        parameters = function.get("parameters")
        if isinstance(parameters, str):
            try:
                parameters = parse_json(parameters)
            except ValueError as error:
                raise InputError(f"tools[{index}].function.parameters", f"is not JSON: {error}", _HINT) from error
        if not (parameters is None or isinstance(parameters, dict)):
            raise InputError(f"tools[{index}].function.parameters", "is no JSON Schema of an object", _HINT)
        given = {**function, "parameters": parameters}
        ordered = {key: given[key] for key in (*_ORDER, *given) if given.get(key) is not None}
        found.append({"type": "function", **tool, "function": ordered})
    names = [tool["function"]["name"] for tool in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError("tools", f"{json.dumps(twice)[:80]} is the name of two functions", "give each its own")
    return found


def tells_calls_from(schema: Mapping[str, Any] | bool, call_format: CallFormat) -> bool:
    """Whether the first character of an answer says if it is JSON of a schema, or calls in a format."""
    shown = call_format.shown()
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    return (shown.marker or shown.opening.lstrip())[0] not in ("{" if is_object else _JSON_BEGINS)


def calls_constraint(
    tools: Sequence[Mapping[str, Any]],
    call_format: CallFormat,
    *,
    is_single: bool,
    text: JsonSchemaConstraint | None = None,
) -> CallsConstraint:
    """What an answer that may call tools must match; `text` is for one without calls, None allows any text.

    Raises:
        InputError: a tool's parameters are no object.
    """
    separators = re.escape(call_format.item_separator), re.escape(call_format.key_separator)
    functions = []
    for index, tool in enumerate(tools):
        parameters = tool["function"].get("parameters") or _NO_PARAMETERS
        if parameters.get("type", "object") != "object":
            raise InputError(f"tools[{index}].function.parameters", "is no JSON Schema of an object", _HINT)
        if not parameters.keys() & _KINDS:
            parameters = {"type": "object", **parameters}
        functions.append((tool["function"]["name"], schema_constraint(parameters, *separators)))
    return CallsConstraint(call_format, tuple(functions), is_single, text)


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, takes_system: bool) -> list[Message]:
    """The conversation for a template that knows no tools: with a text about them, and calls and results as texts.

    The contents of the given messages are texts. Where the template shows no system messages (`takes_system`), the text
    is in the first message.
    """
    about = _SYSTEM.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first, *rest = messages
    written = [_as_text(message) for message in rest]
    if takes_system and first["role"] not in ("system", "developer"):
        return _joined([{"role": "system", "content": about}, _as_text(first), *written])
    content = f"{first['content']}\n\n{about}" if takes_system else f"{about}\n\n{first['content']}"
    return _joined([{**_as_text(first), "content": content}, *written])


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    values = [{"name": one.get("name"), "arguments": one.get("arguments")} for one in functions]
    calls = [f"{CALL}\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>" for value in values]
    content = "\n".join([message["content"], *calls] if message["content"] else calls)
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _joined(messages: Sequence[Message]) -> list[Message]:
    """The messages, of which results one after another are one: many templates want the roles to alternate."""
    found: list[Message] = []
    for message in messages:
        results = [str(one["content"]).startswith("<tool_response>\n") for one in (*found[-1:], message)]
        if len(results) == 2 and all(results) and found[-1]["role"] == message["role"] == "user":
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{message['content']}"}
        else:
            found.append(message)
    return found


class CallsReader:
    """See `tasks.task.Reader`. A text and arguments are shown as they come; a name is shown when it is complete."""

    notes: tuple[str, ...] = ()

    def __init__(self, constraint: CallsConstraint) -> None:
        self._constraint = constraint
        shown = constraint.format.shown()
        opening = shown.opening if shown.marker else shown.opening.lstrip()
        self._begin = shown.marker + opening
        self._trigger = shown.marker or opening
        self._middle, self._between = shown.middle, shown.between
        names = [json.dumps(name, ensure_ascii=False)[1:-1] for name, _ in constraint.functions]
        head = f'{PLAIN_BEGIN}(?P<name>{"|".join(map(re.escape, names))})"{PLAIN_MIDDLE} '
        self._plain = re.compile(head) if shown.marker and constraint.text is None else None
        self._next_plain = re.compile(rf"[ \n]*\}}(,[ \n]*|\n){head}")
        self._plain_beginnings = [f'{{"name":"{name}","{key}":' for name in names for key in _ARGUMENTS]
        self._held = ""  # text that is not shown yet
        self._json = None if constraint.text is None else JsonReader(constraint.text)
        begins = constraint.format.marker and self._json is None  # with a text, calls may come behind one
        self._read: Callable[[], str | None] = self._read_text if begins else self._read_start
        self._name = self._arguments = ""
        self._scanner = _ValueScanner()
        self._is_call = self._is_plain = self._is_whole = False

    def push(self, text: str) -> str:
        """See `Reader.push`."""
        self._held += text
        shown = ""
        while (more := self._read()) is not None:
            shown += more
        return shown

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`. An answer that was cut at its limit of tokens may end amid a call."""
        rest, self._held = self._held, ""
        if self._json is not None and not self._is_call:
            return self._json.push(rest) + self._json.finish(reason)
        if reason is FinishReason.LENGTH:
            return "" if self._is_call or rest.strip() else rest  # what may have been a call's beginning is left out
        if self._is_call and not self._is_whole:
            raise OutputError(
                f"the call was ended before it was complete, after {self._name or 'its beginning'!r}; give "
                "stop_sequences that cannot occur in it"
            )
        return "" if self._is_call else rest

    def _read_start(self) -> str | None:
        """See whether the answer begins as a call. As of all these methods, None says that more text is needed."""
        if self._json is not None:  # no JSON begins with the blanks that may stand before a call
            self._held = self._held.lstrip()
        if self._begin.startswith(self._held) and self._held != self._begin:
            return None
        if self._held.startswith(self._begin):
            self._is_call, self._read = True, self._read_begin
        else:
            self._read = self._read_rest
        return ""

    def _read_rest(self) -> str | None:
        shown, self._held = self._held, ""
        if self._json is not None:
            self._json.push(shown)
        return shown or None

    def _read_text(self) -> str | None:
        at = self._held.find(self._trigger)
        plain = None if self._plain is None else self._plain.search(self._held)
        if plain is not None and not 0 <= at < plain.start():
            text = _without_end(self._held[: plain.start()])
            return text + self._begin_plain(plain)
        if at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at:]
            self._is_call, self._read = True, self._read_begin
            return text
        end = len(self._held) - _held_back(self._held, self._trigger)
        if self._plain is not None:
            end = min(end, self._plain_start())
        shown, self._held = self._held[:end], self._held[end:]
        return shown or None

    def _plain_start(self) -> int:
        """Where in the held text a call that is plain JSON may have begun, or what stands in front of one."""
        at = self._held.rfind("{")
        begun = "".join(self._held[at:].split()) if at >= 0 else ""
        if not begun or not any(one.startswith(begun) for one in self._plain_beginnings):
            at = len(self._held)
        return len(_without_end(self._held[:at]))

    def _begin_plain(self, found: re.Match[str]) -> str:
        self._is_call, self._is_plain, self._held = True, True, self._held[found.end() :]
        return self._begin_call(found["name"])

    def _read_begin(self) -> str | None:
        if len(self._held) < len(self._begin):
            return None
        self._held = self._held[len(self._begin) :]
        self._read = self._read_name
        return ""

    def _read_name(self) -> str | None:
        at = self._held.find(self._middle)
        if at < 0:
            return None
        name, self._held = self._held[:at], self._held[at + len(self._middle) :]
        return self._begin_call(name)

    def _begin_call(self, name: str) -> str:
        self._name = str(json.loads(f'"{name}"'))
        self._scanner, self._arguments = _ValueScanner(is_loose=self._is_plain), ""
        self._is_whole, self._read = False, self._read_arguments
        return f'{CALL}{{"name": "{name}", "arguments": '

    def _read_arguments(self) -> str | None:
        end, shown = self._scanner.take(self._held)
        self._held = self._held[end:]
        self._arguments += shown
        if not self._scanner.is_complete:
            return shown or None
        self._check()
        self._is_whole, self._read = True, self._read_between
        return shown + "}\n"

    def _read_between(self) -> str | None:
        if self._is_plain:
            found = self._next_plain.match(self._held)
            return None if found is None else self._begin_plain(found)
        if self._between is None or not self._held.startswith(self._between):
            return None
        self._held = self._held[len(self._between) :]
        self._is_whole, self._name, self._read = False, "", self._read_name
        return ""

    def _check(self) -> None:
        """Check the arguments of a call as far as the grammar does not keep their schema."""
        arguments = dict(self._constraint.functions)[self._name]
        try:
            value = parse_json(self._arguments, unique_keys=True)
        except ValueError as error:
            raise OutputError(f"the JSON of the arguments of {self._name!r}: {error}; ask again") from error
        checks = answer_checks(arguments)
        if checks is not None and (keyword := checks.first_error(value)) is not None:
            raise OutputError(
                f"the arguments of {self._name!r} do not meet {keyword} of the schema; ask again with another seed, or "
                "simplify that keyword"
            )


def _held_back(text: str, trigger: str) -> int:
    """The length of the end of a text that may turn out to be blanks before a trigger, or its beginning."""
    lengths = range(min(len(trigger) - 1, len(text)), -1, -1)
    begun = next(length for length in lengths if text.endswith(trigger[:length]))
    before = text[: len(text) - begun]
    return len(text) - len(before.rstrip())


def _without_end(text: str) -> str:
    """The text without blanks, the beginning of a code block, and a bracket at its end."""
    end = _BEFORE_PLAIN.search(text)
    return text if end is None else text[: end.start()]


class _ValueScanner:
    """Finds the end of a JSON object that comes in pieces.

    If it `is_loose`, the model chooses the blanks between values, which are then shown in the usual way.
    """

    def __init__(self, *, is_loose: bool = False) -> None:
        self._is_loose = is_loose
        self._depth = 0
        self._in_string = self._is_escaped = False
        self.is_complete = False

    def take(self, text: str) -> tuple[int, str]:
        """The number of new characters that belong to the object, and how they are shown."""
        shown = []
        for index, char in enumerate(text):
            is_inside = self._in_string
            self._step(char)
            if not self._is_loose or is_inside:
                shown.append(char)
            elif char not in " \n":
                shown.append(f"{char} " if char in ",:" else char)
            if self.is_complete:
                return index + 1, "".join(shown)
        return len(text), "".join(shown)

    def _step(self, char: str) -> None:
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0
