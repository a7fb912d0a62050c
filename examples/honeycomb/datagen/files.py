"""Write the training and test data to files, with statistics and digests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import track

from examples.honeycomb.datagen.dataset import SPLITS, Split, generate
from examples.honeycomb.datagen.extracts import answer_lines, calibration_lines
from examples.honeycomb.datagen.split_statistics import Statistics

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
