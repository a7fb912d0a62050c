"""The steps of an evaluation run: ask an engine, score answers, describe the run."""

from __future__ import annotations

import asyncio
import hashlib
import platform
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.evaluation.answering import Answer, Source
from pipeline.evaluation.cases import Case
from pipeline.evaluation.scoring import Score, score_answer
from pipeline.in_flight import in_flight
from serving.config import Settings
from serving.engine import Engine, create_engine

Item = TypeVar("Item")


def ask_engine(
    settings: Settings, cases: Sequence[Item], concurrency: int, make_source: Callable[[Engine], Source[Item]]
) -> Iterator[Answer]:
    """Yield answers in the order in which they finish; the engine is loaded before the first and closed at the end."""
    engine = create_engine(settings)
    try:
        yield from _blocking(in_flight(make_source(engine).answer, cases, concurrency))
    finally:
        engine.close()


def _blocking(answers: AsyncIterator[Answer]) -> Iterator[Answer]:
    """A synchronous iterator over an asynchronous one; its event loop runs only while an item is awaited."""
    with asyncio.Runner() as runner:

        async def next_answer() -> Answer | None:
            return await anext(answers, None)

        while (answer := runner.run(next_answer())) is not None:
            yield answer


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
