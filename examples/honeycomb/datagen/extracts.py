"""Draw samples of the training file: texts to calibrate quantization, and answers for the drafter's n-gram table."""

import json
from pathlib import Path
from random import Random
from typing import Any

from tasks.honeycomb.prompt import build_prompt


def calibration_lines(train: Path, *, count: int, seed: int) -> list[str]:
    """`count` JSON lines {"text": prompt and answer}, drawn from the training file."""
    rows = _draw(train, count, f"{seed}/calibration")
    return [json.dumps({"text": _text(row)}, ensure_ascii=False) for row in rows]


def answer_lines(train: Path, *, count: int, seed: int) -> list[str]:
    """`count` JSON lines {"answer"}, drawn from the training file; answers are as the model writes them."""
    rows = _draw(train, count, f"{seed}/answers")
    return [json.dumps({"answer": _answer(row)}, ensure_ascii=False) for row in rows]


def _draw(train: Path, count: int, seed: str) -> list[dict[str, Any]]:
    lines = train.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in Random(seed).sample(lines, min(count, len(lines)))]


def _answer(row: dict[str, Any]) -> str:
    return json.dumps(row["query"], ensure_ascii=False)


def _text(row: dict[str, Any]) -> str:
    prompt = build_prompt(row["nlq"], row["cols"], "columns-first")
    return prompt + _answer(row)
