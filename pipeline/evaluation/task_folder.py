"""Get answers of a schema or chat task from an engine, in the same way as predict."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

from pipeline.evaluation.answering import Answer
from pipeline.evaluation.task_cases import TaskCase
from serving.engine import Engine
from serving.errors import InvalidRequestError
from serving.types import FinishReason, GenerationRequest, RequestMetrics
from tasks.errors import TaskError
from tasks.task import TASK_FILE, Prompt, Task

_REPEATABLE: Final = {"temperature": 0}  # where a case does not say: each token is the likeliest one


class TaskSource:
    """A task in front of an engine.

    Args:
        engine: that answers.
        task: that asks and reads.
        use_grammar: as predict does: the answer is constrained and checked. Without it the answer is what the model
            wrote.
    """

    def __init__(self, engine: Engine, task: Task, use_grammar: bool) -> None:
        self._engine, self._task, self._use_grammar = engine, task, use_grammar

    async def answer(self, case: TaskCase) -> Answer:
        """Answer one case; if the request is invalid, the answer has the error."""
        start = time.perf_counter()
        text = raw = ""
        error: str | None = None
        metrics: RequestMetrics | None = None
        try:
            prompt = await asyncio.to_thread(self._task.prepare, {**_REPEATABLE, **case.inputs})
            reason = FinishReason.ABORT
            async with aclosing(self._engine.generate(self._request(case, prompt))) as outputs:
                async for output in outputs:
                    raw += output.text
                    text += prompt.reader.push(output.text) if self._use_grammar else output.text
                    metrics, reason = output.metrics or metrics, output.finish_reason or reason
            text += prompt.reader.finish(reason) if self._use_grammar else ""
        except (InvalidRequestError, TaskError) as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
        tokens, passes = (metrics.output_token_count, metrics.model_passes) if metrics else (0, 0)
        return Answer(case.line, text, raw, time.perf_counter() - start, tokens, passes, error)

    def _request(self, case: TaskCase, prompt: Prompt) -> GenerationRequest:
        constraint = prompt.constraint if self._use_grammar else None
        return GenerationRequest(f"line-{case.line}", prompt.token_ids, prompt.sampling, constraint)


@contextlib.contextmanager
def task_folder(weights: Path, task: Path | None) -> Iterator[Path]:
    """A folder with the files of a checkpoint and, if given, another task file and the files beside it."""
    if task is None:
        yield weights
        return
    with tempfile.TemporaryDirectory() as name:
        beside = {path.name: path for path in task.parent.iterdir() if path.suffix in (".json", ".jinja")}
        checkpoint = {path.name: path for path in weights.iterdir()}
        for file, path in {**beside, **checkpoint, TASK_FILE: task}.items():
            Path(name, file).symlink_to(path.resolve())
        yield Path(name)
