"""Read the cases of a Honeycomb test file, which has one of two formats.

cases, refused = read_cases(Path("build/data/test_columns.jsonl"), limit=500)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tasks.errors import TaskError
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.query import Query, parse_query
from tasks.json_text import WrittenFloat

# The human turn of a chat-style file; the question may contain quotes, so it ends where Columns starts.
_HUMAN = re.compile(r'NLQ:\s*"(?P<nlq>.*?)"\s*Columns:\s*(?P<columns>\[.*\])', re.DOTALL)


CaseT = TypeVar("CaseT")


class CaseFileError(Exception):
    """A test file cannot be used; the message says why."""


class RefusedReference(Exception):
    """The reference of a line is itself not a valid answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question and its reference answer; `line` in the file identifies it in results."""

    line: int
    nlq: str
    columns: tuple[str, ...]
    reference: Query
    category: str | None = None


def read_cases(path: Path, limit: int | None = None) -> tuple[list[Case], list[str]]:
    """The cases, and a message for each line whose reference is not a valid query.

    Raises:
        CaseFileError: a line has neither format, or no line can be used.
    """
    records = read_records(path, "scripts/dev/make_data writes build/data/test_columns.jsonl")

    def make(number: int, record: Any) -> Case:
        try:
            return _case(number, record)
        except TaskError as error:
            raise RefusedReference(str(error)) from error

    return collect_cases(path, records, make, expected=_EXPECTED, limit=limit)


def collect_cases(
    path: Path,
    records: Iterable[tuple[int, Any]],
    make: Callable[[int, Any], CaseT],
    *,
    expected: str,
    limit: int | None,
) -> tuple[list[CaseT], list[str]]:
    """Make cases of the records of a file, at most `limit`.

    Args:
        path: of the file, for messages.
        records: line numbers and JSON values.
        make: a case of one record. Raises RefusedReference, or KeyError, TypeError or ValueError for another format.
        expected: what a line looks like.
        limit: None for all.

    Returns:
        The cases, and a message for each line whose reference was refused.

    Raises:
        CaseFileError: a line has another format, or no line can be used.
    """
    cases: list[CaseT] = []
    refused: list[str] = []
    for number, record in records:
        if limit is not None and len(cases) >= limit:
            break
        try:
            cases.append(make(number, record))
        except RefusedReference as error:
            refused.append(f"{path.name}:{number}: {error}")
        except (KeyError, TypeError, ValueError) as error:
            raise CaseFileError(f"{path}:{number}: {expected} ({error!r})") from error
    if not cases:
        raise CaseFileError(f"{path}: no usable line; {expected}")
    return cases, refused


_EXPECTED = (
    'a line is {"nlq", "cols", "query"} or {"conversations": [{"from", "value"}, …]} '
    'with NLQ: "…" and Columns: […] in the human turn'
)


def read_records(path: Path, remedy: str) -> Iterator[tuple[int, Any]]:
    """The values of a JSONL file with their line numbers; numbers know the digits that they are written with.

    Raises:
        CaseFileError: the file does not exist (the message has the remedy), or a line is not JSON.
    """
    if not path.is_file():
        raise CaseFileError(f"{path} does not exist; {remedy}")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line, parse_float=WrittenFloat)
                except ValueError as error:
                    raise CaseFileError(f"{path}:{number}: not JSON: {error}") from error


def _case(number: int, record: dict[str, Any]) -> Case:
    if "conversations" in record:
        nlq, columns, answer = _read_chat(record["conversations"])
    else:
        nlq, answer = record["nlq"], record["query"]
        cols = record["cols"]
        columns = parse_columns(cols) if isinstance(cols, str) else tuple(cols)
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return Case(number, nlq, columns, parse_query(text, columns), record.get("category"))


def _read_chat(turns: list[dict[str, str]]) -> tuple[str, tuple[str, ...], str]:
    found = [_HUMAN.search(t["value"]) for t in turns if t["from"] == "human"]
    answers = [t["value"] for t in turns if t["from"] == "gpt"]
    if not answers or not found or found[0] is None:
        raise ValueError("the first human turn has no NLQ and Columns, or no turn is from gpt")
    return found[0]["nlq"], parse_columns(found[0]["columns"]), answers[0]
