"""Reads example answers from a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.answer_format.errors import ExamplesError

_PAIR = {"input", "output"}
_EXPECTED = (
    'a line is {"input": …, "output": …}, {"messages": […]} whose last message is the answer, or the answer itself'
)


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer that the model was trained on.

    Args:
        place: file and line, for messages.
        value: the parsed answer, with properties in the order in which they were written.
        text: the answer as it was written; None if the file has only its value.
    """

    place: str
    value: Any
    text: str | None


def read_answers(path: Path) -> list[WrittenAnswer]:
    """The answers of a file.

    Raises:
        ExamplesError: a line is not JSON or has no answer, or the file is empty.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExamplesError(f"{path} cannot be read: {error}") from error
    numbered = [(f"{path.name}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ExamplesError(f"{path} is empty; {_EXPECTED}")
    records = [(place, line, _parse(place, line)) for place, line in numbered]
    has_pairs = any(isinstance(record, dict) and record.keys() >= _PAIR for _, _, record in records)
    for place, _, record in records:
        if isinstance(record, dict) and _lacks_answer(record, has_pairs=has_pairs):
            raise ExamplesError(f"{place} has no answer; {_EXPECTED}")
    return [_read(place, line, record) for place, line, record in records]


def parse_answer(place: str, text: str) -> WrittenAnswer:
    """Parse the text of an answer.

    Raises:
        ExamplesError: it is not JSON.
    """
    try:
        return WrittenAnswer(place, json.loads(text), text)
    except ValueError as error:
        remedy = "write the JSON without the code fence" if "```" in text else _EXPECTED
        raise ExamplesError(f"{place}: the answer {text[:80]!r} is not JSON ({error}); {remedy}") from error


def _parse(place: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ExamplesError(f"{place}: not JSON ({error}); {_EXPECTED}") from error


def _lacks_answer(record: dict[str, Any], *, has_pairs: bool) -> bool:
    """Whether a record is one of training data whose answer is missing, and is no answer itself."""
    if "input" in record and "output" not in record:
        return has_pairs or len(record) == 1
    return record.keys() == {"messages"} and not list(_answers(record))


def _read(place: str, line: str, record: Any) -> WrittenAnswer:
    answers = list(_answers(record))
    if not answers:
        return WrittenAnswer(place, record, line.rstrip("\r"))
    answer = answers[-1]
    return parse_answer(place, answer) if isinstance(answer, str) else WrittenAnswer(place, answer, None)


def _answers(record: Any) -> Iterator[Any]:
    """The answer in a record of training data; nothing if the record is itself an answer."""
    if not isinstance(record, dict):
        return
    if record.keys() >= _PAIR:
        yield record["output"]
    elif isinstance(messages := record.get("messages"), list):
        yield from (m["content"] for m in messages if isinstance(m, dict) and m.get("role") == "assistant")
