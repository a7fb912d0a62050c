"""The steps of an evaluation run after its answers: score them, describe the run."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.evaluate.answering import Answer
from pipeline.evaluate.cases import Case
from pipeline.evaluate.scoring import Score, score_answer


def score_all(cases: Sequence[Case], answers: Mapping[int, Answer]) -> Iterator[Score]:
    """Scores in the order of the cases."""
    for case in cases:
        yield score_answer(case, answers[case.line].text)


def describe(data: Path, cases: int, **settings: Any) -> dict[str, Any]:
    """The command, data, settings and machine of a run, for its result file."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "data": {"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "cases": cases},
        "settings": settings,
        "machine": platform.platform(),
        "python": platform.python_version(),
    }


def describe_speed(answers: Sequence[Answer]) -> dict[str, float]:
    """Median seconds, and mean tokens and forward passes of answers."""
    seconds = sorted(a.seconds for a in answers)
    return {
        "median_seconds": seconds[len(seconds) // 2],
        "output_tokens": sum(a.output_tokens for a in answers) / len(answers),
        "model_passes": sum(a.model_passes for a in answers) / len(answers),
    }
