"""llama.cpp's server as an engine of the benchmark; see `lab.bench.llama_build`.

The weights are a folder with model.gguf. The server makes its own grammars, of JSON schemas.

    engine = create(Settings(weights_dir=Path("build/bench/0123/Q4_0")))
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import httpx

from lab.bench.llama_build import MODEL, built_program
from lab.endurance.cog_process import free_port
from serving.config import Settings
from serving.constraints import JsonSchemaConstraint
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

CONTEXT: Final = 1024  # tokens of a request; the server divides its cache evenly among its slots
_SPECULATION: Final = {"ngram": ("--spec-type", "ngram-mod")}


def create(settings: Settings) -> LlamaEngine:
    """Start the server with all cores, and a slot for every request that is computed at once."""
    port, cores = free_port(), settings.num_threads or os.cpu_count() or 1
    slots = settings.max_num_seqs
    command = [
        *(str(built_program("llama-server")), "--model", str(settings.weights_dir / MODEL)),
        *("--host", "127.0.0.1", "--port", str(port), "--threads", str(cores)),
        *("--parallel", str(slots), "--ctx-size", str(CONTEXT * slots), "--no-ui", "--log-verbosity", "1"),
        *_SPECULATION.get(settings.speculation, ()),
    ]
    return LlamaEngine(
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr), f"http://127.0.0.1:{port}"
    )


class LlamaEngine:
    """See `serving.engine.Engine`; greedy only. `min_tokens` means that no end token may come."""

    name = "llama"
    max_model_len = CONTEXT

    def __init__(self, server: subprocess.Popen[bytes], url: str) -> None:
        self._server = server
        self._url = url

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        names = {field.name for field in dataclasses.fields(SamplingParams)} - {"max_tokens", "min_tokens", "seed"}
        refuse_parameters(request.sampling, sorted(names), because="which the benchmark's llama.cpp is not asked for")
        started, first = time.monotonic(), None
        try:
            async with (
                httpx.AsyncClient(timeout=None, verify=False, trust_env=False) as client,
                client.stream("POST", f"{self._url}/completion", json=_body(request)) as response,
            ):
                if response.is_error:
                    raise InvalidRequestError(f"llama.cpp refused the request: {(await response.aread()).decode()}")
                async for line in response.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    if "stop" not in chunk:
                        raise EngineDeadError(f"llama.cpp failed: {chunk}")
                    first = first or time.monotonic() - started
                    if chunk["stop"]:
                        reason = FinishReason.LENGTH if chunk["stop_type"] == "limit" else FinishReason.STOP
                        yield GenerationOutput(chunk["content"], (), reason, _metrics(chunk, first, started))
                        return
                    yield GenerationOutput(chunk["content"], ())
        except httpx.HTTPError as error:
            raise EngineDeadError(f"llama.cpp failed: {error!r}") from error
        raise EngineDeadError("llama.cpp ended an answer without its last line")

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`; waits until the model is loaded."""
        until = time.monotonic() + timeout
        while self._server.poll() is None and time.monotonic() < until:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    async for _ in self.generate(GenerationRequest("health", (1,), SamplingParams(max_tokens=1))):
                        pass
            except (EngineDeadError, InvalidRequestError, TimeoutError):  # it answers 503 while it loads
                await asyncio.sleep(0.05)
            else:
                return
        raise EngineDeadError(f"llama.cpp gave no token within {timeout:g} s, or ended; its output is above")

    def stats(self) -> EngineStats:
        """See `Engine.stats`; llama.cpp does not report its counters."""
        return EngineStats(0, 0, 0, 0, 0)

    def close(self) -> None:
        """See `Engine.close`."""
        self._server.kill()  # it keeps nothing
        self._server.wait()


def _body(request: GenerationRequest) -> dict[str, Any]:
    body = {
        "prompt": list(request.prompt_token_ids),
        "n_predict": request.sampling.max_tokens,
        "temperature": 0.0,
        "cache_prompt": True,
        "stream": True,
        "ignore_eos": request.sampling.min_tokens > 0,
    }
    match request.constraint:
        case None:
            return body
        case JsonSchemaConstraint(schema=schema):
            return {**body, "json_schema": json.loads(schema)}
    raise InvalidRequestError(
        f"llama.cpp is asked for JSON schemas only, not for a {type(request.constraint).__name__}"
    )


def _metrics(chunk: dict[str, Any], first: float, started: float) -> RequestMetrics:
    """Metrics with one pass for each token that was not drafted, because llama.cpp does not report passes."""
    timings = chunk["timings"]
    accepted = int(timings.get("draft_n_accepted", 0))
    return RequestMetrics(
        input_token_count=chunk["tokens_evaluated"],
        output_token_count=chunk["tokens_predicted"],
        model_passes=chunk["tokens_predicted"] - accepted,
        cached_token_count=int(timings.get("cache_n", 0)),
        time_to_first_token=first,
        total_time=time.monotonic() - started,
        draft_token_count=int(timings.get("draft_n", 0)),
        accepted_token_count=accepted,
    )
