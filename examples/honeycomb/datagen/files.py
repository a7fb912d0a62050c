"""Write the training and test data to files, with statistics and digests, and extracts of the training data.

Extracts are texts to calibrate quantization, and answers for the drafter's n-gram table.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from rich.progress import track

from examples.honeycomb.datagen.dataset import SPLITS, Split, generate
from examples.honeycomb.datagen.example_questions import Example
from tasks.honeycomb.prompt import build_prompt

Extract = tuple[int, Path] | None  # number of lines and the file for them


def write_data(
    out: Path,
    *,
    seed: int,
    examples: int,
    people_share: float,
    written: int,
    calibration: Extract = None,
    answers: Extract = None,
) -> None:
    """Write a JSONL file for each split, statistics.json, and the given extracts.

    Args:
        out: folder, created if it is missing.
        seed: the same seed gives the same bytes.
        examples: total number in all splits, without the written ones.
        people_share: part of the made training examples that `people` makes, from 0 to 1.
        written: how often each written question is in the training data.
        calibration: extract of training texts for quantization.
        answers: extract of training answers for the drafter.
    """
    out.mkdir(parents=True, exist_ok=True)
    seen: set[frozenset[str]] = set()
    train = replace(SPLITS[0], people_share=people_share, written=written)
    splits = {split.name: _write(split, out, seed, examples, seen) for split in (train, *SPLITS[1:])}
    options = {"seed": seed, "examples": examples, "people_share": people_share, "written": written}
    report = json.dumps({**options, "splits": splits}, indent=1)
    (out / "statistics.json").write_text(report + "\n", encoding="utf-8")
    for target, extract in ((calibration, calibration_lines), (answers, answer_lines)):
        if target:
            count, path = target
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = extract(out / "train.jsonl", count=count, seed=seed)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{sum(split['examples'] for split in splits.values()):,} examples in {out}")


def _write(split: Split, out: Path, seed: int, examples: int, seen: set[frozenset[str]]) -> dict[str, Any]:
    statistics, digest = Statistics(), hashlib.sha256()
    found = generate(split, seed=seed, examples=examples, seen=seen)
    with (out / f"{split.name}.jsonl").open("wb") as file:
        for example in track(found, description=f"{split.name:>15}", total=split.size(examples)):
            line = f"{example.json()}\n".encode()
            file.write(line)
            digest.update(line)
            statistics.add(example)
    return {"sha256": digest.hexdigest(), **statistics.summary()}


@dataclass
class Statistics:
    """Running totals over examples."""

    categories: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    sets: set[str] = field(default_factory=set)
    vocabularies: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    columns: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)

    def add(self, example: Example) -> None:
        """Count one example."""
        self.categories[example.category] += 1
        self.features.update(example.features)
        self.sets.add(example.column_set)
        self.vocabularies.update(example.vocabularies)
        self.templates.update(example.templates)
        self.columns.append(len(example.cols))
        self.characters.append(len(example.nlq))

    def summary(self) -> dict[str, Any]:
        """The counts as in `statistics.json`."""
        return {
            "examples": len(self.columns),
            "column_sets": len(self.sets),
            "vocabularies": sorted(self.vocabularies),
            "templates": len(self.templates),
            "categories": dict(sorted(self.categories.items())),
            "features": dict(sorted(self.features.items())),
            "columns": _spread(self.columns),
            "question_characters": _spread(self.characters),
        }


def _spread(values: list[int]) -> dict[str, float]:
    ordered = sorted(values)
    at = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (1, 50, 90, 99)}
    return {"mean": round(sum(ordered) / len(ordered), 1), **at, "max": ordered[-1]}


def calibration_lines(train: Path, *, count: int, seed: int) -> list[str]:
    """`count` JSON lines {"text": prompt and answer}, drawn from the training file."""
    rows = _draw(train, count, f"{seed}/calibration")
    texts = (build_prompt(row["nlq"], row["cols"], "columns-first") + _answer(row) for row in rows)
    return [json.dumps({"text": text}, ensure_ascii=False) for text in texts]


def answer_lines(train: Path, *, count: int, seed: int) -> list[str]:
    """`count` JSON lines {"answer"}, drawn from the training file; answers are as the model writes them."""
    rows = _draw(train, count, f"{seed}/answers")
    return [json.dumps({"answer": _answer(row)}, ensure_ascii=False) for row in rows]


def _draw(train: Path, count: int, seed: str) -> list[dict[str, Any]]:
    lines = train.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in Random(seed).sample(lines, min(count, len(lines)))]


def _answer(row: dict[str, Any]) -> str:
    return json.dumps(row["query"], ensure_ascii=False)
