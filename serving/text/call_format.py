"""Finds out how a chat template writes calls of functions, by rendering conversations with calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from serving.constraints import CALL, CallFormat
from serving.errors import InvalidRequestError
from serving.text.template_renderer import Message

Render = Callable[[Sequence[Message], bool], str]

DEFAULT_FORMAT: Final = CallFormat(
    marker=CALL,
    opening='\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
)
"""The format for a template that writes no calls, or writes them in a way that is not known here."""

_USER: Final[Message] = {"role": "user", "content": "A"}
_TEXT: Final = "Probe"
_ARGUMENTS: Final[Mapping[str, int]] = {"first": 1, "second": 2}
_WRITTEN: Final = r'\{[ ]?"first"(?P<key>:[ ]?)1(?P<item>,[ ]?)"second":[ ]?2[ ]?\}'
_ID: Final = re.compile(r',[ ]?"id":[ ]?"call0000\d"')  # Mistral's templates add it; the model does not write it
_FIRST: Final = re.compile(r'(?:.*\s)??(?P<marker>\S*[^\s\[])?(?P<opening>\s*(?:\[\s*)?\{\s*"\w+"\s*:\s*")', re.DOTALL)
_MIDDLE: Final = re.compile(r'"\s*,\s*"\w+"\s*:\s*')
_BETWEEN: Final = re.compile(r'\s*\}.*\{\s*"\w+"\s*:\s*"', re.DOTALL)


def find_call_format(render: Render) -> CallFormat | None:
    """How a template writes calls; None if it writes none, or not as JSON with the name before the arguments.

    `render` renders messages; its other argument is whether the prompt ends where an answer begins.
    """
    try:
        prompt, one = render([_USER], True), render([_USER, _calling(1)], False)
        text = render([_USER, {"role": "assistant", "content": _TEXT}], False)
    except InvalidRequestError:
        return None
    if not one.startswith(prompt):
        return None
    end = text.rpartition(_TEXT)[2]
    found = re.fullmatch(
        rf"(?P<first>.*?)probe1(?P<middle>.*?){_WRITTEN}(?P<closing>.*)", one[len(prompt) :], re.DOTALL
    )
    if found is None:
        return None
    first, middle = _FIRST.fullmatch(found["first"]), found["middle"]
    closing = _ID.sub("", found["closing"])
    if first is None or not _MIDDLE.fullmatch(middle) or not (closing.startswith("}") and closing.endswith(end)):
        return None
    marker = first["marker"] or ""
    return CallFormat(
        marker,
        first["opening"],
        middle,
        closing.removesuffix(end),
        _between(render, middle) if marker else None,
        found["item"],
        found["key"],
    )


def _between(render: Render, middle: str) -> str | None:
    """What stands between two calls; None if the template writes one only."""
    try:
        two = render([_USER, _calling(2)], False)
    except InvalidRequestError:
        return None
    found = re.search(rf"probe1{re.escape(middle)}{_WRITTEN}(?P<between>.*?)probe2", two, re.DOTALL)
    between = "" if found is None else _ID.sub("", found["between"])
    return between if _BETWEEN.fullmatch(between) else None


def _calling(count: int) -> dict[str, Any]:
    calls = [
        {"type": "function", "id": f"call0000{number}", "function": {"name": f"probe{number}", "arguments": _ARGUMENTS}}
        for number in range(1, count + 1)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
