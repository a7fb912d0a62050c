"""A run from cases to results.

Owns: asking an engine or an adapter for what is missing, scoring, and what is said of the run.

    answers = ask_engine(settings, cases, grammar=True, concurrency=16, track=track)
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.evaluation.answering import Answer, EngineSource, answer_all
from scripts.evaluation.cases import Case
from scripts.evaluation.scoring import Score, score_answer
from serving.config import Settings
from serving.engine import create_engine


def ask_engine(
    settings: Settings, cases: Sequence[Case], grammar: bool, concurrency: int
) -> Iterator[Answer]:
    """Answers as they come. The engine is loaded at the first, and closed after the last."""
    engine = create_engine(settings)
    try:
        source = EngineSource(engine, settings.weights_dir, grammar)
        yield from _blocking(answer_all(source, cases, concurrency))
    finally:
        engine.close()


def _blocking(answers: AsyncIterator[Answer]) -> Iterator[Answer]:
    """An asynchronous iterator as a plain one; between items nothing runs."""
    with asyncio.Runner() as runner:

        async def following() -> Answer | None:
            return await anext(answers, None)

        while (answer := runner.run(following())) is not None:
            yield answer


def score_all(cases: Sequence[Case], answers: Mapping[int, Answer]) -> Iterator[Score]:
    """Scores in the order of the cases."""
    for case in cases:
        yield score_answer(case, answers[case.line].text)


def describe(data: Path, cases: int, **settings: Any) -> dict[str, Any]:
    """What a result file says about its making."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "data": {"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "cases": cases},
        "settings": settings,
        "machine": platform.platform(),
        "python": platform.python_version(),
    }


def describe_speed(answers: Sequence[Answer]) -> dict[str, float]:
    """How long answers took, in seconds, tokens and model passes."""
    seconds = sorted(a.seconds for a in answers)
    return {
        "median_seconds": seconds[len(seconds) // 2],
        "output_tokens": sum(a.output_tokens for a in answers) / len(answers),
        "model_passes": sum(a.model_passes for a in answers) / len(answers),
    }
