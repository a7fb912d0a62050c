"""The `Engine` that runs vLLM's `AsyncLLM`, whose client is bound to the event loop of its own thread.

vLLM gets and returns token ids; our detokenizer makes the text, so that stop strings and end tokens work alike in all
engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from serving.adapters.adapter_store import AdapterStore
from serving.adapters.registry import AdapterEntry
from serving.checkpoint import Checkpoint
from serving.clients.answer import EngineOutput, RequestProgress
from serving.clients.open_requests import LoopThread, OpenRequests
from serving.config import Settings
from serving.constraints import JsonSchemaConstraint
from serving.engines.vllm.adapters import Call, VllmAdapter, open_store
from serving.engines.vllm.choose_again import Begun, chosen_again
from serving.engines.vllm.draft_config import version_fault
from serving.engines.vllm.options import engine_args, sampling_params, set_environment
from serving.errors import EngineDeadError, InvalidRequestError, ServingError
from serving.grammar import answer_checks
from serving.grammar.checked_state import CheckedState
from serving.grammar.compiler import GrammarCompiler
from serving.request_checks import check_request
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams, TokenLogprob
from serving.weights.adapter_files import Loaded

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

OpenAdapters = Callable[[Any, Call, Call], AdapterStore[VllmAdapter]]
_CLOSED = "the engine was closed; make a new one"
_ENDED = "vLLM's engine process ended; restart the server"


class VllmEngine:
    """See `serving.engine.Engine`. vLLM's engine core runs in its own process.

    Args:
        start: creates vLLM's client; called on the thread and event loop that it will belong to.
        tokenizer: the tokenizer of the checkpoint that vLLM loads.
        max_num_seqs: limit of running requests.
        max_queue: limit of waiting requests.
        open_adapters: makes the store of adapters of a client, from functions that run coroutines on its loop; None
            without adapters.
        adapter_tokenizers: the tokenizers of those adapters that add tokens to the checkpoint's.
    """

    name = "vllm"

    def __init__(
        self,
        start: Callable[[], AsyncLLM],
        *,
        tokenizer: Tokenizer,
        max_num_seqs: int,
        max_queue: int,
        open_adapters: OpenAdapters | None = None,
        adapter_tokenizers: Mapping[str, Tokenizer] = MappingProxyType({}),
    ) -> None:
        self._tokenizer = tokenizer
        self._adapter_tokenizers = adapter_tokenizers
        self._open = OpenRequests(max_num_seqs=max_num_seqs, max_queue=max_queue)
        self._loop = LoopThread("vllm-client")
        try:
            self._llm: AsyncLLM = self._loop.call(_run(start))
            self._adapters: AdapterStore[VllmAdapter] = (
                AdapterStore({}, _no_adapter, max_bytes=0)
                if open_adapters is None
                else open_adapters(
                    self._llm, lambda make: self._loop.call(make()), lambda make: self._loop.submit(make())
                )
            )
        except BaseException:
            self._loop.stop()
            raise

    @property
    def max_model_len(self) -> int:
        """The limit that vLLM derived from the checkpoint and the setting MAX_MODEL_LEN."""
        return int(self._llm.model_config.max_model_len)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput]:
        """See `serving.engine.Engine`."""
        tokenizer = self._adapter_tokenizers.get(request.adapter or "", self._tokenizer)
        check_request(
            request,
            max_model_len=self.max_model_len,
            vocab_size=min(tokenizer.vocab_size, self._llm.model_config.get_vocab_size()),
            adapters=self._adapters.entries,
        )
        params, checked = await asyncio.to_thread(self._prepare, request)  # compiles the grammar
        relay = self._open.admit(request.request_id, self._check_alive)
        answer = RequestProgress(request, tokenizer, started=relay.started, speculates=self._speculates)
        try:
            async with self._adapters.lease(request.adapter, self._check_alive) as adapter:
                lora = adapter and adapter.request
                given: AsyncIterator[EngineOutput] = outputs(self._llm, request, params, lora)
                if checked is not None:
                    given = chosen_again(partial(self._ask_rest, lora), request, checked)
                self._loop.submit(relay.run(given))
                while not answer.is_finished:
                    yield answer.add(await _translated(relay.get()))
        finally:
            self._open.release(request.request_id)
            relay.cancel(self._loop)

    async def health(self, timeout: float = 5.0) -> None:
        """See `serving.engine.Engine`. It waits for a token of any request: its own may be queued after many others."""
        self._check_alive()
        request = GenerationRequest(f"health-{time.monotonic_ns()}", (0,), SamplingParams(max_tokens=1))
        given = outputs(self._llm, request, self._params(request))
        if not await _translated(self._open.probe(self._loop, given, timeout)):
            raise EngineDeadError(f"vLLM generated no token within {timeout:g} s; restart the server")

    def stats(self) -> EngineStats:
        """See `serving.engine.Engine`; vLLM does not report its blocks."""
        return self._open.stats()

    def load_pinned(self) -> None:
        """Load the adapters that the registry pins.

        Raises:
            AdapterError: one of them cannot be used, or they do not fit together.
        """
        self._adapters.load_pinned()

    def close(self) -> None:
        """See `serving.engine.Engine`."""
        if not self._open.close():
            return
        self._adapters.close()
        with suppress(Exception):  # the core may have died already
            self._loop.call(_run(self._llm.shutdown))
        # Its `__del__` calls this again, and fails where that is at the interpreter's end.
        self._llm.shutdown = lambda timeout=None: None
        self._loop.stop()

    def _check_alive(self) -> None:
        if self._open.is_closed:
            raise EngineDeadError(_CLOSED)
        if self._llm.errored:
            raise EngineDeadError(_ENDED)

    def _prepare(self, request: GenerationRequest) -> tuple[Any, CheckedState | None]:
        """vLLM's parameters, and the state that follows an answer which is checked; None for any other."""
        params, constraint = self._params(request), request.constraint
        if not isinstance(constraint, JsonSchemaConstraint) or answer_checks(constraint) is None:
            return params, None
        import vllm

        if version_fault(vllm.__version__) is not None or (request.adapter or "") in self._adapter_tokenizers:
            return params, None  # its grammars are not those of `grammar_scheduler`, or follow another tokenizer
        state = self._checker.compile(constraint)
        return params, state if isinstance(state, CheckedState) else None

    @cached_property
    def _checker(self) -> GrammarCompiler:
        return GrammarCompiler(self._tokenizer, vocab_size=self._llm.model_config.get_vocab_size())

    def _ask_rest(self, lora: Any, request: GenerationRequest, begun: Begun) -> AsyncGenerator[EngineOutput]:
        return outputs(self._llm, request, self._params(request, begun), lora)

    def _params(self, request: GenerationRequest, begun: Begun | None = None) -> Any:
        return sampling_params(
            request,
            tokenizer=self._tokenizer,
            max_model_len=self.max_model_len,
            speculates=self._speculates,
            begun=begun,
        )

    @property
    def _speculates(self) -> bool:
        return self._llm.vllm_config.speculative_config is not None


def create(settings: Settings, checkpoint: Checkpoint) -> VllmEngine:
    """Load the checkpoint of the settings into vLLM.

    Raises:
        EngineNotAvailableError: this machine's vLLM cannot run the checkpoint; the message says what can.
        SettingError: vLLM would ignore a setting on this device.
        WeightsError: the checkpoint has no tokenizer, or one of another model.
        AdapterError: the list of adapters is wrong, or a pinned one cannot be loaded.
        EngineDeadError: vLLM did not start; the message ends with what it said first.
    """
    set_environment(settings)
    from vllm.v1.engine.async_llm import AsyncLLM

    args = engine_args(settings, checkpoint)

    def start() -> AsyncLLM:
        return AsyncLLM.from_engine_args(args)

    try:
        engine = VllmEngine(
            start,
            tokenizer=checkpoint.tokenizer,
            max_num_seqs=settings.max_num_seqs,
            max_queue=settings.max_queue,
            open_adapters=partial(open_store, settings, checkpoint) if args.enable_lora else None,
            adapter_tokenizers=checkpoint.adapter_tokenizers,
        )
    except ServingError:
        raise
    except Exception as error:
        first: BaseException = error
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        because = "" if first is error else f", because of {type(first).__name__}: {first}"
        raise EngineDeadError(f"vLLM did not start: {type(error).__name__}: {error}{because}") from error
    try:
        engine.load_pinned()
    except BaseException:
        engine.close()
        raise
    return engine


def _no_adapter(entry: AdapterEntry) -> Loaded[VllmAdapter]:
    raise AssertionError(f"there are no adapters, and {entry.name} was asked for")


async def _run(function: Callable[[], Any]) -> Any:
    return function()


async def _translated(output: Coroutine[Any, Any, Any]) -> Any:
    """Await an output, and translate vLLM's errors into ours."""
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


async def outputs(
    llm: AsyncLLM, request: GenerationRequest, params: Any, lora: Any = None
) -> AsyncGenerator[EngineOutput]:
    """Generate; closing the iterator makes vLLM abort the request.

    Raises:
        Exception: any error of vLLM.
    """
    prompt: Any = {"prompt_token_ids": list(request.prompt_token_ids)}
    async for output in llm.generate(prompt, params, request.request_id, lora_request=lora):
        yield engine_output(output, request.sampling.logprobs)


def engine_output(output: RequestOutput, num_logprobs: int | None) -> EngineOutput:
    """One output of vLLM.

    Raises:
        EngineDeadError: vLLM gave up the request, for example because its grammar failed.
    """
    completion = output.outputs[0]
    if completion.finish_reason == "error":
        raise EngineDeadError("vLLM ended the answer with an error; its log says why")
    return EngineOutput(
        completion.token_ids,
        completion.finish_reason,
        None if num_logprobs is None else _logprobs(completion, num_logprobs),
        output.num_cached_tokens or 0,
    )


def _logprobs(completion: CompletionOutput, count: int) -> list[TokenLogprob]:
    """vLLM gives a dict for each token, with the likeliest tokens and the chosen one."""
    if not completion.token_ids:
        return []
    assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
    result = []
    for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        ranked = sorted((entry.rank, other, entry.logprob) for other, entry in entries.items())
        top = tuple((other, logprob) for rank, other, logprob in ranked if rank <= count)
        result.append(TokenLogprob(token_id, entries[token_id].logprob, top))
    return result
