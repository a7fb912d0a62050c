"""The package's Predictor, whose health check also writes the engine's counters to a file.

The real Cog server starts it. The folder OBSERVED gets `stats.json`, with the counters as they were before the health
check's own request.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from predict import Predictor
from serving.engine import Engine
from serving.types import EngineStats, GenerationOutput, GenerationRequest

OBSERVED = "OBSERVED"  # environment variable


class ObservedPredictor(Predictor):
    """A predictor that answers as its base class does."""

    def setup(self) -> None:
        """See `TaskPredictor.setup`."""
        super().setup()
        self.model.engine = self._observed = ObservedEngine(self.model.engine)

    async def healthcheck(self) -> bool:
        """See `TaskPredictor.healthcheck`."""
        folder = Path(os.environ[OBSERVED])
        partial = folder / "stats.json.partial"
        partial.write_text(json.dumps(self._observed.counters()), "utf-8")
        partial.replace(folder / "stats.json")
        return await super().healthcheck()


class ObservedEngine:
    """Passes everything on to an engine, and counts requests and what ended them. See `serving.engine.Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name, self.max_model_len = engine.name, engine.max_model_len
        self._num_requests = self._num_open = 0
        self._aborted = {"before a token": 0, "after a token": 0}
        self._returns: list[int] = []  # steps until all blocks were free, of aborts that left nothing in flight
        self._watching: set[asyncio.Task[None]] = set()

    def counters(self) -> dict[str, Any]:
        """The engine's counters and these."""
        return {
            **asdict(self._engine.stats()),
            "num_requests": self._num_requests,
            "aborted": self._aborted,
            "steps_until_free": self._returns,
        }

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        self._num_requests += 1
        self._num_open += 1
        has_token = is_finished = False
        try:
            async with aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    has_token = has_token or bool(output.token_ids)
                    is_finished = output.finish_reason is not None
                    yield output
        except (GeneratorExit, asyncio.CancelledError):
            if not is_finished:
                self._aborted["after a token" if has_token else "before a token"] += 1
                task = asyncio.create_task(self._watch_blocks(self._engine.stats().num_steps))
                self._watching.add(task)
                task.add_done_callback(self._watching.discard)
            raise
        finally:
            self._num_open -= 1

    async def _watch_blocks(self, step: int) -> None:
        """Count the steps until every block is free, unless another request is in flight meanwhile."""
        while True:
            stats = self._engine.stats()
            if self._num_open or stats.num_waiting or stats.num_running > 1:
                return
            if stats.num_free_blocks == stats.num_blocks:
                self._returns.append(stats.num_steps - step)
                return
            await asyncio.sleep(0.0005)

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`."""
        await self._engine.health(timeout)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()
