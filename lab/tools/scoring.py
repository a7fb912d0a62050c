"""Judges calls of functions as the Berkeley Function Calling Leaderboard does.

A call is right if its name is the accepted one, each of its arguments has one of the accepted values, and each argument
that may not be left out is there. The order of several calls does not matter. Texts are compared without case, blanks
and most punctuation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jsonschema import Draft202012Validator

from lab.tools.questions import Question

_LEFT_OUT: Final = ""  # among the accepted values: the argument may be left out
_IGNORED: Final = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Args:
        calls: names and arguments, which are JSON text if all is well.
        content: the text.
        finish_reason: why the answer ended.
        seconds: how long it took.
        prompt_tokens: tokens of the prompt, as the server counts them.
        error: the server's message if it gave no answer.
    """

    calls: Sequence[tuple[str, str]] = ()
    content: str = ""
    finish_reason: str = ""
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an answer is judged.

    Args:
        is_right: whether the calls are the accepted ones; or, where none is right, there is none.
        unparsable: calls whose arguments are no JSON object, and texts with the beginning of a call in them.
        unknown_names: calls of functions that were not given.
        misfits: calls whose arguments do not match the function's schema.
        problem: a word for what is wrong; empty if the answer is right.
    """

    is_right: bool
    unparsable: int = 0
    unknown_names: int = 0
    misfits: int = 0
    problem: str = field(default="", compare=False)


def judge(question: Question, answer: Answer) -> Verdict:
    """The verdict on an answer."""
    functions = {tool["function"]["name"]: tool["function"] for tool in question.tools}
    calls: list[tuple[str, Any]] = []
    unparsable = int("<tool_call>" in answer.content or "</tool_call>" in answer.content)
    for name, text in answer.calls:
        try:
            arguments = json.loads(text)
        except ValueError:
            arguments = None
        unparsable += not isinstance(arguments, dict)
        calls.append((name, arguments))
    unknown = sum(name not in functions for name, _ in calls)
    known = [(functions[name]["parameters"], arguments) for name, arguments in calls if name in functions]
    misfits = sum(not Draft202012Validator(schema).is_valid(arguments) for schema, arguments in known)
    problem = _problem(question, answer, calls)
    return Verdict(not problem, unparsable, unknown, misfits, problem)


def _problem(question: Question, answer: Answer, calls: Sequence[tuple[str, Any]]) -> str:
    if answer.error is not None:
        return "error"
    if len(calls) != len(question.accepted):
        return "no call" if not calls else "too many calls" if len(calls) > len(question.accepted) else "too few calls"
    types = {
        tool["function"]["name"]: {
            name: one.get("type") for name, one in tool["function"]["parameters"].get("properties", {}).items()
        }
        for tool in question.tools
    }
    left = list(calls)
    for name, accepted in question.accepted:
        of_name = [call for call in left if call[0] == name]
        if not of_name:
            return "another function"
        right = next((call for call in of_name if _fits(call[1], accepted, types[name])), None)
        if right is None:
            return "arguments"
        left.remove(right)
    return ""


def _fits(arguments: Any, accepted: Mapping[str, Sequence[Any]], types: Mapping[str, Any]) -> bool:
    if not isinstance(arguments, dict):
        return False
    return all(
        name in accepted
        and (types.get(name) != "integer" or not isinstance(value, float))
        and any(_matches(value, one) for one in accepted[name])
        for name, value in arguments.items()
    ) and all(name in arguments or _LEFT_OUT in values for name, values in accepted.items())


def _matches(value: Any, accepted: Any) -> bool:
    """Whether a value is an accepted one. Of an object, an accepted one has a list of values for each key."""
    match accepted:
        case dict():
            return _fits(value, accepted, {})
        case list():
            return (
                isinstance(value, list)
                and len(value) == len(accepted)
                and all(_matches(one, other) for one, other in zip(value, accepted, strict=True))
            )
        case str():
            return isinstance(value, str) and _plain(value) == _plain(accepted)
    return isinstance(value, bool) == isinstance(accepted, bool) and bool(value == accepted)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')
