"""llama.cpp as an engine of the benchmark.

The weights are a folder with model.gguf, as `lab.bench.gguf_export` writes it. This build of llama.cpp has llguidance,
so it reads the same grammars as the other engines.

    engine = create(Settings(weights_dir=Path("build/bench/llama")))
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

from serving.config import Settings
from serving.constraints import LarkConstraint
from serving.errors import EngineDeadError, InvalidRequestError
from serving.request_checks import refuse_parameters
from serving.types import (
    EngineStats,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    RequestMetrics,
    SamplingParams,
)

CONTEXT = 1024  # tokens of a request; llama.cpp divides its cache evenly among them
Chunk = dict[str, Any] | Exception
_MARK = "%llguidance"  # begins a grammar that is not GBNF


def create(settings: Settings) -> LlamaEngine:
    """Load the GGUF; all cores, a slot for every request that is computed at once."""
    params = xllamacpp.CommonParams()
    params.model.path = str(settings.weights_dir / "model.gguf")
    params.n_parallel = settings.max_num_seqs
    params.n_ctx = CONTEXT * settings.max_num_seqs
    params.cpuparams.n_threads = settings.num_threads or os.cpu_count() or 1
    params.cpuparams_batch.n_threads = params.cpuparams.n_threads
    params.warmup = True
    params.verbosity = 0  # a line a request otherwise
    if settings.speculation == "ngram":
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return LlamaEngine(xllamacpp.Server(params), settings.max_num_seqs)


class LlamaEngine:
    """See `serving.engine.Engine`; greedy only, a thread a request. `min_tokens` means that no end token may come."""

    name = "llama"
    max_model_len = CONTEXT

    def __init__(self, server: xllamacpp.Server, max_num_seqs: int) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(max_num_seqs, thread_name_prefix="llama")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`. A running request of llama.cpp cannot be aborted."""
        names = {field.name for field in dataclasses.fields(SamplingParams)} - {"max_tokens", "min_tokens", "seed"}
        refuse_parameters(request.sampling, sorted(names), because="which the benchmark's llama.cpp is not asked for")
        started, first = time.monotonic(), None
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[Chunk]()

        def push(chunk: Chunk) -> bool:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            return False

        self._pool.submit(self._run, self._completion(request), push)
        while True:
            chunk = await chunks.get()
            if isinstance(chunk, Exception):
                raise EngineDeadError(f"llama.cpp failed: {chunk}") from chunk
            if "choices" not in chunk:
                raise InvalidRequestError(f"llama.cpp refused the request: {chunk}")
            choice = chunk["choices"][0]
            first = first or time.monotonic() - started
            if "timings" in chunk:
                reason = FinishReason.LENGTH if choice["finish_reason"] == "length" else FinishReason.STOP
                yield GenerationOutput(choice["text"], (), reason, _metrics(chunk, first, started))
                return
            yield GenerationOutput(choice["text"], ())

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`."""
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.generate(GenerationRequest("health", (1,), SamplingParams(max_tokens=1))):
                    pass
        except TimeoutError as error:
            raise EngineDeadError(f"llama.cpp gave no token within {timeout:g} s") from error

    def stats(self) -> EngineStats:
        """See `Engine.stats`; llama.cpp does not report its counters."""
        return EngineStats(0, 0, 0, 0, 0)

    def close(self) -> None:
        """See `Engine.close`."""
        self._pool.shutdown(wait=False)

    def _completion(self, request: GenerationRequest) -> dict[str, Any]:
        body = {
            "prompt": list(request.prompt_token_ids),
            "n_predict": request.sampling.max_tokens,
            "temperature": 0.0,
            "cache_prompt": True,
            "stream": True,
            "ignore_eos": request.sampling.min_tokens > 0,
        }
        if not isinstance(request.constraint, LarkConstraint):
            return body
        grammar = request.constraint.text
        return {**body, "grammar": grammar if grammar.startswith(_MARK) else f"{_MARK} {{}}\n{grammar}"}

    def _run(self, body: dict[str, Any], push: Any) -> None:
        """Generate an answer, pushing each chunk."""
        try:
            refused = self._server.handle_completions(body, push)
        except Exception as error:
            push(error)
        else:
            if refused is not None:  # an error is returned, not streamed
                push(refused if isinstance(refused, dict) else RuntimeError(str(refused)))


def _metrics(chunk: dict[str, Any], first: float, started: float) -> RequestMetrics:
    """Metrics with one pass for each token, because llama.cpp does not report passes."""
    usage, timings = chunk["usage"], chunk["timings"]
    accepted = int(timings.get("draft_n_accepted", 0))
    return RequestMetrics(
        input_token_count=usage["prompt_tokens"],
        output_token_count=usage["completion_tokens"],
        model_passes=usage["completion_tokens"] - accepted,
        cached_token_count=int(timings.get("cache_n", 0)),
        time_to_first_token=first,
        total_time=time.monotonic() - started,
        draft_token_count=int(timings.get("draft_n", 0)),
        accepted_token_count=accepted,
    )
