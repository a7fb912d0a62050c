"""Reads the input of a response as messages of a chat completion; its items are messages, calls and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gateway.openai.error_objects import ApiError

REFERENCE: Final = "item_reference"  # the type of an item that stands for one of an earlier answer
Item = dict[str, JsonValue]
Message = dict[str, JsonValue]


class _Item(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] = "completed"


class _TextPart(BaseModel):
    """A text; its other fields, such as annotations of an earlier answer, are not read."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["input_text", "output_text", "text"]
    text: str


class _MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: list[_TextPart]
    phase: str | None = None  # a hint for OpenAI's own models


class _CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _ResultItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: list[_TextPart]


_KINDS: Final[Mapping[str, type[_MessageItem] | type[_CallItem] | type[_ResultItem]]] = {
    "message": _MessageItem,
    "function_call": _CallItem,
    "function_call_output": _ResultItem,
}
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco"}


def read_items(given: Sequence[Mapping[str, JsonValue]], own_id: str) -> list[Item]:
    """The items of an input as they are kept and shown: with ids, and contents as lists of parts.

    Args:
        given: the items as they were sent, but for references, in whose places the items themselves are.
        own_id: a text from which items without an id get one.

    Raises:
        ApiError: an item is of no known kind, or is wrong; its parameter has the item's number.
    """
    return [_read(one, f"input[{index}]", f"{own_id}_{index}") for index, one in enumerate(given)]


def messages_of(items: Iterable[Mapping[str, JsonValue]], instructions: str | None = None) -> list[Message]:
    """The items of `read_items`, or of an answer, as messages of a chat completion."""
    messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in items:
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                call: JsonValue = {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                last = messages[-1] if messages else {}
                if last.get("role") != "assistant":  # else it belongs to the same turn
                    last = {"role": "assistant", "content": None}
                    messages.append(last)
                earlier = last.get("tool_calls")
                last["tool_calls"] = [*(earlier if isinstance(earlier, list) else []), call]
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _content(output)})
            case {"role": role, "content": content}:
                # Chat templates know the older name of the developer's role.
                role = "system" if role == "developer" else role
                messages.append({"role": role, "content": _content(content)})
    return messages


def _read(given: Mapping[str, JsonValue], place: str, own_id: str) -> Item:
    kind = given.get("type") or "message"
    shape = _KINDS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        known = ", ".join((*_KINDS, REFERENCE))
        text = f"{place}: items of the type {str(kind)[:80]!r} are not supported here; {known} are"
        raise ApiError(text, param=f"{place}.type")
    values: dict[str, JsonValue] = {name: value for name, value in given.items() if value is not None}
    for name in ("content", "output"):
        if isinstance(content := values.get(name), str):
            values[name] = [{"type": "text", "text": content}]
    try:
        item = shape.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = place + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        raise ApiError(f"{param[:200]}: {first['msg']}", param=param[:200]) from error
    part = "output_text" if isinstance(item, _MessageItem) and item.role == "assistant" else "input_text"
    shown: Item = item.model_dump(exclude={"content", "output"}, exclude_none=True)
    shown["id"] = item.id or f"{_PREFIXES[item.type]}_{own_id}"
    if isinstance(item, _MessageItem):
        shown["content"] = [{"type": part, "text": one.text} for one in item.content]
    elif isinstance(item, _ResultItem):
        shown["output"] = [{"type": part, "text": one.text} for one in item.output]
    return shown


def _content(parts: JsonValue) -> JsonValue:
    """A message's content: a text, or where there are several, parts."""
    if not isinstance(parts, list):
        return parts
    texts: list[JsonValue] = [part["text"] for part in parts if isinstance(part, dict) and "text" in part]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
