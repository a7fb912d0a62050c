"""An engine that calls transformers' `generate`: the conformance suite's reference, and a small example of an engine.

Each request has its own thread, without batching, caching or drafts. It is not among the serving engines, because the
image does not have transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from serving.config import Settings
from serving.constraints import Constraint
from serving.engine import Engine
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError
from serving.grammar import compile_constraint
from serving.request_checks import check_request
from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import (
    EngineStats,
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    RequestMetrics,
    SamplingParams,
    TokenLogprob,
)


def create(settings: Settings) -> Engine:
    """Load a checkpoint in float32."""
    model = AutoModelForCausalLM.from_pretrained(settings.weights_dir, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    return TransformersEngine(
        model,
        Tokenizer.from_dir(settings.weights_dir),
        max_model_len=settings.max_model_len or model.config.max_position_embeddings,
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
    )


class TransformersEngine:
    """See `serving.engine.Engine`."""

    name = "transformers"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, max_model_len: int, max_num_seqs: int, max_queue: int
    ) -> None:
        self.max_model_len = max_model_len
        self._model = model
        self._tokenizer = tokenizer
        self._max_num_seqs = max_num_seqs
        self._max_queue = max_queue
        self._pool = ThreadPoolExecutor(max_num_seqs, thread_name_prefix="transformers")
        self._lock = threading.Lock()
        self._in_flight: dict[str, Generation] = {}
        self._num_steps = 0
        self._closed = False

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        check_request(request, max_model_len=self.max_model_len, vocab_size=self._tokenizer.vocab_size)
        matcher = await asyncio.to_thread(self._compile, request.constraint)
        generation = self._admit(Generation(request, self._tokenizer, matcher))
        try:
            while True:
                output = await generation.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            generation.is_aborted = True
            if generation.future.cancel():  # it is still waiting, so its thread will not remove it
                self._forget(generation)

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`. The probe has its own thread outside the pool."""
        self._raise_if_closed()
        request = GenerationRequest("health", (0,), SamplingParams(max_tokens=1))
        probe = Generation(request, self._tokenizer, None)
        try:
            await asyncio.wait_for(asyncio.to_thread(self._run, probe), timeout)
        except Exception as error:
            raise EngineDeadError(f"transformers gave no token within {timeout} s: {error!r}") from error
        self._num_steps += probe.choose.num_passes

    def stats(self) -> EngineStats:
        """See `Engine.stats`; the steps of running requests count."""
        with self._lock:
            count, running = len(self._in_flight), min(len(self._in_flight), self._max_num_seqs)
            steps = self._num_steps + sum(one.choose.num_passes for one in self._in_flight.values())
        return EngineStats(running, count - running, 0, 0, steps)

    def close(self) -> None:
        """See `Engine.close`."""
        with self._lock:
            self._closed = True
            for generation in self._in_flight.values():
                generation.is_aborted = True
                generation.send(EngineDeadError("the engine was closed"))
            self._in_flight.clear()
        self._pool.shutdown(cancel_futures=True)

    def _forget(self, generation: Generation) -> None:
        with self._lock:
            if self._in_flight.pop(generation.request.request_id, None) is not None:
                self._num_steps += generation.choose.num_passes

    def _admit(self, generation: Generation) -> Generation:
        request_id = generation.request.request_id
        with self._lock:
            self._raise_if_closed()
            if request_id in self._in_flight:
                raise InvalidRequestError(f"request_id {request_id!r} is in flight; choose another")
            if len(self._in_flight) >= self._max_num_seqs + self._max_queue:
                raise EngineBusyError(f"{self._max_queue} requests are waiting, the limit; try later")
            self._in_flight[request_id] = generation
            generation.future = self._pool.submit(self._work, generation)
        return generation

    def _work(self, generation: Generation) -> None:
        """Run a request on a thread of the pool; it is removed before its reader can know that it has finished."""
        try:
            self._run(generation)
        except Exception as error:
            self._forget(generation)
            generation.send(EngineDeadError(f"transformers failed: {error!r}"))
        else:
            self._forget(generation)
            generation.finish()

    def _run(self, generation: Generation) -> None:
        """Generate the whole answer, delta by delta."""
        request = generation.request
        room = self.max_model_len - len(request.prompt_token_ids)
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=min(request.sampling.max_tokens, room),
            do_sample=False,  # `generation` chooses the tokens, with its own random generator
            eos_token_id=list(self._tokenizer.eos_token_ids),
            pad_token_id=self._tokenizer.eos_token_ids[0],
        )
        ids = torch.tensor([request.prompt_token_ids])
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                logits_processor=[generation.choose],
                stopping_criteria=[Stop(generation)],
                streamer=Stream(generation),
            )

    def _compile(self, constraint: Constraint | None) -> LLMatcher | None:
        return None if constraint is None else compile_constraint(constraint, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return LLTokenizer(
            self._tokenizer.to_json(),
            n_vocab=self._model.config.vocab_size,
            eos_token=list(self._tokenizer.eos_token_ids),
        )

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise EngineDeadError("the engine was closed; make a new one")


class Generation:
    """One request, and the queue of its deltas to the reader's event loop."""

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer, matcher: LLMatcher | None) -> None:
        self.request = request
        self.choose = Choose(request, matcher, tokenizer.eos_token_ids)
        self.outputs: asyncio.Queue[GenerationOutput | EngineDeadError] = asyncio.Queue()
        self.is_aborted = False
        self.future: Future[None]  # set when it is admitted
        self._loop = asyncio.get_running_loop()
        self._eos = tokenizer.eos_token_ids
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.sampling.stop)
        self._reason = FinishReason.LENGTH
        self._started = time.monotonic()
        self._first: float | None = None
        self._num_tokens = 0

    @property
    def is_stopped(self) -> bool:
        """Whether the reader has left, or a stop string is complete."""
        return self.is_aborted or self._detokenizer.stopped_by is not None

    def add(self, token_id: int) -> None:
        """Add a token of the model."""
        if token_id in self._eos:
            self._reason = FinishReason.STOP
            return
        self._first = self._first or time.monotonic() - self._started
        self._num_tokens += 1
        self.send(GenerationOutput(self._detokenizer.push([token_id]), (token_id,), logprobs=self.choose.logprobs))

    def finish(self) -> None:
        """Send the last delta, after the last token."""
        text = self._detokenizer.flush()
        is_stop = self._detokenizer.stopped_by is not None or self.choose.is_complete
        reason = FinishReason.STOP if is_stop else self._reason
        metrics = RequestMetrics(
            input_token_count=len(self.request.prompt_token_ids),
            output_token_count=self._num_tokens,
            model_passes=self.choose.num_passes,
            cached_token_count=0,
            time_to_first_token=self._first,
            total_time=time.monotonic() - self._started,
        )
        self.send(GenerationOutput(text, (), reason, metrics))

    def send(self, output: GenerationOutput | EngineDeadError) -> None:
        """Send an output or an error, from any thread; does nothing if the reader's loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.outputs.put_nowait, output)


class Stop(StoppingCriteria):
    """A criterion that ends `generate` when the generation is stopped."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        """Whether to stop, as a tensor [1] of bool."""
        return torch.tensor([self._generation.is_stopped])


class Stream(BaseStreamer):
    """A streamer that passes tokens on to the generation; the first call has the prompt."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._saw_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt or the next token, a tensor [1, tokens] or [1]."""
        if self._saw_prompt:
            self._generation.add(int(value))
        self._saw_prompt = True

    def end(self) -> None:
        """Do nothing: the reason for the end is known where `generate` is called."""


class Choose(LogitsProcessor):
    """A processor that applies grammar and sampling itself, and leaves `generate` one token to choose."""

    def __init__(self, request: GenerationRequest, matcher: LLMatcher | None, eos_token_ids: tuple[int, ...]) -> None:
        self.num_passes = 0
        self.logprobs: tuple[TokenLogprob, ...] = ()  # of the last chosen token
        self._sampling = sampling = request.sampling
        self._matcher = matcher
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._eos = list(eos_token_ids)
        self._repetition = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
        self._warpers = _warpers(sampling)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows no further token."""
        return self._matcher is not None and self._matcher.is_stopped()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores to choose the next token from; input_ids: [1, tokens]; scores and result: [1, vocabulary]."""
        self.num_passes += 1
        output = input_ids[0, self._num_prompt_tokens :]
        logits = self._penalized(input_ids, scores.clone(), output)
        if self._matcher is not None:
            bitmask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bitmask, bitorder="little")[: logits.shape[1]].astype(bool)
            logits[0, ~torch.from_numpy(allowed)] = -torch.inf
        if len(output) < self._sampling.min_tokens:
            without_end = logits.clone()
            without_end[0, self._eos] = -torch.inf
            logits = without_end if without_end.isfinite().any() else logits
        token_id = self._sample(input_ids, logits) if self._sampling.temperature > 0 else int(logits.argmax())
        if self._matcher is not None:
            self._matcher.consume_token(token_id)
        if self._sampling.logprobs is not None:
            self.logprobs = (_logprob(scores[0], token_id, self._sampling.logprobs),)
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([token_id]), 0.0)

    def _penalized(self, input_ids: torch.Tensor, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        logits = self._repetition(input_ids, logits)
        counts = output.bincount(minlength=logits.shape[1])
        logits -= self._sampling.frequency_penalty * counts + self._sampling.presence_penalty * (counts > 0)
        return logits

    def _sample(self, input_ids: torch.Tensor, logits: torch.Tensor) -> int:
        for warper in self._warpers:
            logits = warper(input_ids, logits)
        return int(torch.multinomial(logits.softmax(1), 1, generator=self._generator))


def _warpers(sampling: SamplingParams) -> list[LogitsProcessor]:
    warpers: list[LogitsProcessor] = []
    if sampling.temperature > 0:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return warpers


def _logprob(logits: torch.Tensor, token_id: int, count: int) -> TokenLogprob:
    logprobs = logits.log_softmax(0)
    values, ids = logprobs.topk(count)
    return TokenLogprob(token_id, float(logprobs[token_id]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
