"""Questions for the Honeycomb task: many different ones, whose columns belong to one question only."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lab.bench.questions import HoneycombQuestions, read_teams

_ASKED: Final = (
    "count by {0}",
    "p99 of {1} by {0} in the last hour",
    "average {1} where {0} is checkout",
    "slowest {0} by {1}",
    "max {1} and count by {0} where {2} exists",
)
_NAMES: Final = ("name", "duration_ms", "error", "status", "region", "bytes")
MARK: Final = "zq"  # begins the columns of `marked`, and no word of a question


def mixed(count: int, seed: int) -> list[dict[str, Any]]:
    """Inputs with questions of twenty teams, from one column to a hundred, some with few tokens to answer."""
    rng = random.Random(seed)
    drawn = HoneycombQuestions(read_teams()).draw(count, f"endurance {seed}", number=seed)
    found = []
    for number, question in enumerate(drawn):
        columns = json.loads(question["cols"])
        if number % 5 == 1:
            columns = columns[:1]
        if number % 5 == 2:
            columns += [f"app.field_{place}" for place in range(100 - len(columns))]
        inputs = {"nlq": f"{question['nlq']} {rng.randrange(1000)}", "cols": json.dumps(columns)}
        found.append(inputs | ({"max_tokens": rng.choice((8, 16, 40))} if number % 5 == 3 else {}))
    return found


def chats(count: int) -> list[dict[str, Any]]:
    """Inputs of a chat: greedy and sampled with seeds, free and with a schema, some with stop sequences."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
    found = []
    for number in range(count):
        inputs: dict[str, Any] = {"prompt": f"Tell me {number} things.", "max_tokens": 16 + number % 3 * 8}
        if number % 2:
            inputs |= {"temperature": 1.0, "seed": number // 2, "top_k": 40}
        if number % 4 == 2:
            inputs |= {"json_schema": schema}
        if number % 4 == 3:
            inputs |= {"stop_sequences": [".", "\n\n"], "repetition_penalty": 1.1}
        found.append(inputs)
    return found


def adapter_questions(folder: Path, count: int) -> list[dict[str, Any]]:
    """Inputs for the example adapters, each in turn and greedy or sampled with seeds; every ninth is for the base."""
    names = sorted(path.parent.name for path in folder.glob("*/questions.jsonl"))
    texts = {name: (folder / name / "questions.jsonl").read_text("utf-8").splitlines() for name in names}
    found = []
    for number in range(count):
        name = [*names, None][number % (len(names) + 1)]
        lines = texts[name or names[0]]
        inputs = {"text": json.loads(lines[number % len(lines)])["input"], "max_tokens": 96}
        found.append(
            inputs
            | ({"adapter": name} if name else {})
            | ({"temperature": 1.0, "seed": number} if number % 4 == 0 else {})
        )
    return found


def marked(number: int, *, num_columns: int = 6) -> dict[str, Any]:
    """Inputs whose columns all have the number in their names, so that no other answer may have them."""
    columns = [f"{MARK}{number}x.{_NAMES[place % len(_NAMES)]}_{place}" for place in range(num_columns)]
    return {"nlq": _ASKED[number % len(_ASKED)].format(*columns), "cols": json.dumps(columns)}


def has_foreign_mark(text: str, number: int) -> bool:
    """Whether a text has a column of another question than `marked(number)`."""
    return any(int(found) != number for found in re.findall(rf"{MARK}(\d+)x", text))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
