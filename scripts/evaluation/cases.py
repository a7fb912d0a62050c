"""What is asked and what should come back.

Owns: reading the two forms of test files. Knows nothing of models or measures.

    cases, refused = read_cases(Path("build/data/test_columns.jsonl"), limit=500)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from honeycomb.columns import parse_columns
from honeycomb.errors import HoneycombError
from honeycomb.query import Query, parse_query

# The human turn of a chat-style file; the question may hold quotes, so it ends where Columns begin.
_HUMAN = re.compile(r'NLQ:\s*"(?P<nlq>.*?)"\s*Columns:\s*(?P<columns>\[.*\])', re.DOTALL)


class CaseFileError(Exception):
    """A test file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `line` is where it stands in its file and names it in results."""

    line: int
    nlq: str
    columns: tuple[str, ...]
    reference: Query
    category: str | None = None


def read_cases(path: Path, limit: int | None = None) -> tuple[list[Case], list[str]]:
    """The cases, and a message for each line whose reference is itself no valid query.

    Raises:
        CaseFileError: a line is neither form, or no line could be used.
    """
    cases: list[Case] = []
    refused: list[str] = []
    for number, record in _records(path):
        if limit is not None and len(cases) >= limit:
            break
        try:
            cases.append(_case(number, record))
        except HoneycombError as error:
            refused.append(f"{path.name}:{number}: {error}")
        except (KeyError, TypeError, ValueError) as error:
            raise CaseFileError(f"{path}:{number}: {_EXPECTED} ({error!r})") from error
    if not cases:
        raise CaseFileError(f"{path}: no usable line; {_EXPECTED}")
    return cases, refused


_EXPECTED = (
    'a line is {"nlq", "cols", "query"} or {"conversations": [{"from", "value"}, …]} '
    'with NLQ: "…" and Columns: […] in the human turn'
)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    if not path.is_file():
        raise CaseFileError(f"{path}: no such file; scripts/make_data writes build/data/test_columns.jsonl")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
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
