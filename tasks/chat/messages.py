"""Converts the messages of one call to the form that chat templates read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.chat.inputs import ChatInputs
from tasks.errors import InputError
from tasks.json_text import parse_json

Message = dict[str, Any]


def conversation(inputs: ChatInputs, *, system_prompt: str | None, as_parts: bool, as_text: bool) -> list[Message]:
    """The messages of a call, the system prompt first; `system_prompt` is the default, for a call without one.

    `as_parts` and `as_text` are whether the template accepts a list of parts, and a text, as content.

    Raises:
        InputError: a message is malformed, or there are two system prompts.
    """
    messages = [_message(index, message) for index, message in enumerate(inputs.messages)]
    messages = messages or [{"role": "user", "content": inputs.prompt}]
    has_own = messages[0]["role"] in ("system", "developer")
    if inputs.system_prompt and has_own:
        raise InputError("system_prompt", "messages also has a system message", "give one of the two")
    first = inputs.system_prompt or system_prompt
    if first and not has_own:
        messages.insert(0, {"role": "system", "content": first})
    return [with_content(message, as_parts=as_parts, as_text=as_text) for message in messages]


def _message(index: int, message: Mapping[str, Any]) -> Message:
    """A message without null fields, with a content, and with the arguments of its tool calls as objects."""
    name = f"messages[{index}]"
    known = {key: value for key, value in message.items() if value is not None}
    if not isinstance(known.get("role"), str) or not known["role"]:
        raise InputError(name, "has no role", 'give each message a role such as "user" or "assistant"')
    if known.get("tool_calls"):
        known["tool_calls"] = list(_tool_calls(f"{name}.tool_calls", known["tool_calls"]))
        known.setdefault("content", "")  # many templates add it to a text, which None cannot be
    elif known.get("content") is None:
        raise InputError(name, "has no content", "give each message a text")
    if not isinstance(known["content"], str | list):
        raise InputError(f"{name}.content", f"is a {type(known['content']).__name__}", "send a text")
    for part in known["content"] if isinstance(known["content"], list) else []:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise InputError(
                f"{name}.content", "has a part that is not a text", 'send parts {"type": "text", "text": "…"}'
            )
    return _with_short_id(known, "tool_call_id")


def _tool_calls(name: str, calls: Any) -> Iterator[dict[str, Any]]:
    """Convert tool calls: in OpenAI's API arguments are JSON text, chat templates need the object."""
    if not isinstance(calls, list):
        raise InputError(name, f"is a {type(calls).__name__}", "send a list")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise InputError(name, "has a call without a function", 'send {"function": {"name", "arguments"}}')
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = parse_json(arguments or "{}")
            except ValueError as error:
                raise InputError(
                    name, f"arguments are not JSON: {error}", "send them as the model wrote them"
                ) from error
        yield _with_short_id({**call, "function": {**function, "arguments": arguments}}, "id")


def _with_short_id(part: dict[str, Any], key: str) -> dict[str, Any]:
    """The part with nine letters and digits in place of an id of OpenAI's API: Mistral's templates take no others."""
    given = part.get(key)
    if not isinstance(given, str) or not given.startswith("call_"):
        return part
    return {**part, key: hashlib.sha256(given.encode()).hexdigest()[:9]}


def with_content(message: Message, *, as_parts: bool, as_text: bool) -> Message:
    """A message whose content has a form that the template accepts; see `conversation`."""
    match message.get("content"):
        case list(parts) if not as_parts:
            return {**message, "content": "\n".join(part["text"] for part in parts)}
        case str(text) if as_parts and not as_text:
            return {**message, "content": [{"type": "text", "text": text}]}
    return message
