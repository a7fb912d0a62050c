"""Reads inputs of predictions from JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InputLine:
    """Inputs of one prediction.

    Args:
        number: of the line, from 1.
        inputs: by name.
    """

    number: int
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WrongLine:
    """A line that cannot be read.

    Args:
        number: of the line, from 1.
        reason: for people.
    """

    number: int
    reason: str


def read_lines(lines: Iterable[bytes]) -> Iterator[InputLine | WrongLine]:
    """The inputs of each line that is not blank: an object of inputs, or an object that has them as `input`."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not content:
            continue
        try:
            yield InputLine(number, _inputs_of(json.loads(content)))
        except (ValueError, RecursionError) as error:  # also text that is not UTF-8
            yield WrongLine(number, str(error) if isinstance(error, _NoInputsError) else f"is not JSON: {error}")


class _NoInputsError(ValueError):
    pass


def _inputs_of(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "no object"
        raise _NoInputsError(f'is {kind}; give an object of inputs such as {{"text": "…"}} on each line')
    inner = value.get("input")
    return inner if isinstance(inner, dict) else value
