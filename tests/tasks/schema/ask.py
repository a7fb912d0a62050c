"""Asks a task through an engine, as the predictor does."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import Any

from serving.engine import Engine
from serving.types import FinishReason, GenerationRequest
from tasks.task import Task


async def answer(engine: Engine, task: Task, **inputs: Any) -> tuple[str, FinishReason]:
    """The streamed answer and its finish reason."""
    prompt = task.prepare({"text": "some text", **inputs})
    request = GenerationRequest(uuid.uuid4().hex, prompt.token_ids, prompt.sampling, prompt.constraint)
    shown, reason = "", None
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            shown += prompt.reader.push(output.text)
            reason = output.finish_reason
    assert reason is not None
    return shown + prompt.reader.finish(reason), reason
