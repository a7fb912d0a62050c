"""Random conversations with the features that a template supports."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests import tiny_tokenizers
from tests.serving.text.chat_families import Family

Conversation = dict[str, Any]  # messages, tools, add_generation_prompt
Write = Callable[[str], str]  # from the kind of a text to the text

_WORDS = ("the slowest", "traces", "of", "checkout,", "{}", "[]", "<b>", "</b>", "#!/bin/sh", "user", "assistant")


def harmless_text(rng: random.Random) -> str:
    """Words of several scripts and white space, without control tokens."""
    words = [rng.choice([rng.choice(_WORDS), tiny_tokenizers.random_text(rng)]) for _ in range(rng.randint(1, 6))]
    return rng.choice(["", " ", "\n"]) + rng.choice([" ", "\n", "\n\n", ""]).join(words) + rng.choice(["", "  ", "\n"])


def conversation(rng: random.Random, family: Family, write: Write) -> Conversation:
    """A conversation in which every text that a caller chooses comes from `write`.

    Args:
        rng: chooses the number and kinds of messages.
        family: its template's features limit the conversation.
        write: gets `text`, `key` (of an object) or `id` (nine characters).
    """
    messages = [{"role": "system", "content": write("text")}] if rng.random() < 0.5 else []
    has_tools = "tools" in family.features and rng.random() < 0.5
    for turn in range(rng.randint(1, 3)):
        if turn:
            if has_tools and rng.random() < 0.6:
                messages += _tool_calls(write)
            messages.append({"role": "assistant", "content": write("text")})
        messages.append({"role": "user", "content": write("text")})
    arguments: Conversation = {"messages": messages, "add_generation_prompt": rng.random() < 0.7}
    if has_tools:
        arguments["tools"] = [_tool(write) for _ in range(rng.randint(1, 2))]
    return arguments


def _tool(write: Write) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {write("key"): {"type": "string", "enum": [write("text")]}}}
    return {
        "type": "function",
        "function": {"name": write("text"), "description": write("text"), "parameters": parameters},
    }


def _tool_calls(write: Write) -> list[dict[str, Any]]:
    call_id = write("id")
    arguments = {write("key"): write("text"), "depth": {"list": [1, None, True, write("text")]}}
    call = {"type": "function", "id": call_id, "function": {"name": write("text"), "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "name": write("text"), "content": write("text")},
    ]
