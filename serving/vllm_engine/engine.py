"""vLLM's asynchronous engine as one of ours.

Owns: admission, liveness and one thread with the event loop that vLLM's client is bound to. Knows
nothing of prompts: token ids go in and come out, and our own detokenizer makes the text, so that
stop strings and end tokens mean the same with every engine.

    engine = create(Settings(engine="vllm"))
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from serving.checks import check_request
from serving.config import Settings
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError, ServingError
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams
from serving.vllm_engine.answer import Answer
from serving.vllm_engine.options import engine_args, sampling_params, set_environment
from serving.vllm_engine.relay import Relay

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_CLOSED = "the engine was closed; make a new one"
_ENDED = "vLLM's engine process ended; restart the server"


class VllmEngine:
    """One vLLM `AsyncLLM`, its engine core in a process of its own.

    Args:
        start: makes the client; called on the thread and event loop that will own it.
        tokenizer: of the checkpoint that vLLM loads.
        max_num_seqs: requests that vLLM computes at once.
        max_queue: requests that may wait beyond them.
    """

    name = "vllm"

    def __init__(
        self, start: Callable[[], AsyncLLM], *, tokenizer: Tokenizer, max_num_seqs: int, max_queue: int
    ) -> None:
        self._tokenizer = tokenizer
        self._max_num_seqs = max_num_seqs
        self._capacity = max_num_seqs + max_queue
        self._relays: dict[str, Relay] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._num_outputs = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="vllm-client", daemon=True)
        self._thread.start()
        try:
            self._llm: AsyncLLM = self._call(_run(start))
        except BaseException:
            self._stop_loop()
            raise

    @property
    def max_model_len(self) -> int:
        """As vLLM settled it from the checkpoint and our setting."""
        return int(self._llm.model_config.max_model_len)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput]:
        """See `serving.engine.Engine`."""
        check_request(request, max_model_len=self.max_model_len, vocab_size=self._tokenizer.vocab_size)
        params = await asyncio.to_thread(self._params, request)  # compiles the grammar
        relay = self._admit(request)
        speculates = self._llm.vllm_config.speculative_config is not None
        answer = Answer(request, self._tokenizer, started=relay.started, speculates=speculates)
        try:
            self._submit(relay.run(self._llm, request, params))
            while not answer.is_finished:
                yield answer.add(await _translated(relay.get()))
        finally:
            with self._lock:
                self._relays.pop(request.request_id, None)
            relay.cancel(self._loop)

    async def health(self, timeout: float = 5.0) -> None:
        """See `serving.engine.Engine`. Any request's token will do: the probe's waits behind all others."""
        self._check_alive()
        before = self._num_outputs
        request = GenerationRequest(f"health-{time.monotonic_ns()}", (0,), SamplingParams(max_tokens=1))
        relay = Relay(asyncio.get_running_loop(), self._count_output)
        self._submit(relay.run(self._llm, request, self._params(request)))
        probe = asyncio.ensure_future(_translated(relay.get()))
        try:
            async with asyncio.timeout(timeout):
                while not probe.done() and self._num_outputs == before:
                    await asyncio.wait({probe}, timeout=0.02)
            if probe.done():
                probe.result()
        except TimeoutError as error:
            message = f"vLLM generated no token within {timeout:g} s; restart the server"
            raise EngineDeadError(message) from error
        finally:
            probe.cancel()
            relay.cancel(self._loop)

    def stats(self) -> EngineStats:
        """See `serving.engine.Engine`; vLLM keeps its blocks to itself."""
        count = len(self._relays)
        running = min(count, self._max_num_seqs)
        return EngineStats(running, count - running, 0, 0, self._num_outputs)

    def close(self) -> None:
        """See `serving.engine.Engine`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            relays = list(self._relays.values())
        for relay in relays:
            relay.put(EngineDeadError("the engine was closed while this request ran"))
        with suppress(Exception):  # a core that died already is as good as closed
            self._call(_run(self._llm.shutdown))
        self._stop_loop()

    def _run_loop(self) -> None:
        """The thread: runs until stopped, ends what still runs on the loop, and frees its sockets."""
        with asyncio.Runner(loop_factory=lambda: self._loop):
            self._loop.run_forever()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def _admit(self, request: GenerationRequest) -> Relay:
        with self._lock:
            self._check_alive()
            if request.request_id in self._relays:
                raise InvalidRequestError(f"request id {request.request_id!r} is in flight; choose another")
            if len(self._relays) >= self._capacity:
                raise EngineBusyError(f"busy: {self._capacity} requests are in flight; try again later")
            relay = self._relays[request.request_id] = Relay(asyncio.get_running_loop(), self._count_output)
        return relay

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineDeadError(_CLOSED)
        if self._llm.errored:
            raise EngineDeadError(_ENDED)

    def _count_output(self) -> None:
        """On vLLM's loop, so that a reader who takes its time changes nothing."""
        self._num_outputs += 1

    def _params(self, request: GenerationRequest) -> Any:
        return sampling_params(request, tokenizer=self._tokenizer, max_model_len=self.max_model_len)

    def _submit(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # closed since the caller looked
            coroutine.close()
            raise EngineDeadError(_CLOSED) from error

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def create(settings: Settings) -> VllmEngine:
    """Load the checkpoint of the settings into vLLM.

    Raises:
        EngineNotAvailableError: this machine's vLLM cannot run it; says what can.
        WeightsError: no tokenizer is there.
        EngineDeadError: vLLM did not start; its own words are the cause.
    """
    tokenizer = Tokenizer.from_dir(settings.weights_dir)
    set_environment(settings.num_threads)
    from vllm.v1.engine.async_llm import AsyncLLM

    args = engine_args(settings)

    def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(args)

    try:
        return VllmEngine(
            start, tokenizer=tokenizer, max_num_seqs=settings.max_num_seqs, max_queue=settings.max_queue
        )
    except Exception as error:
        raise EngineDeadError(f"vLLM did not start: {error}") from error


async def _run(function: Callable[[], Any]) -> Any:
    return function()


async def _translated(output: Coroutine[Any, Any, Any]) -> Any:
    """Vendor errors become ours, here and nowhere else."""
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

    try:
        return await output
    except ServingError:
        raise
    except VllmDeadError as error:
        raise EngineDeadError(_ENDED) from error
    except VLLMClientError as error:
        raise InvalidRequestError(f"vLLM refused the request: {error}") from error
    except Exception as error:
        raise EngineDeadError(f"vLLM failed: {error}") from error
