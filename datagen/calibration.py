"""Owns the texts that quantization is calibrated on: prompts with their answers.

Use: `calibration_lines(path, …)`.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from honeycomb.prompt import build_prompt


def calibration_lines(train: Path, *, count: int, seed: int) -> list[str]:
    """So many JSON lines {"text": prompt and answer}, drawn from the training file."""
    lines = train.read_text(encoding="utf-8").splitlines()
    chosen = Random(f"{seed}/calibration").sample(lines, min(count, len(lines)))
    return [json.dumps({"text": _text(json.loads(line))}, ensure_ascii=False) for line in chosen]


def _text(row: dict[str, Any]) -> str:
    prompt = build_prompt(row["nlq"], row["cols"], "columns-first")
    return prompt + json.dumps(row["query"], ensure_ascii=False)
