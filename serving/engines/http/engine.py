"""The `Engine` that asks a running vLLM server, which may be on another machine.

The server computes token ids, as vLLM does inside this process. Texts and stop strings are ours, and a constraint is
checked here too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from serving.checkpoint import Checkpoint
from serving.clients.answer import EngineOutput, RequestProgress
from serving.clients.open_requests import LoopThread, OpenRequests
from serving.config import Settings
from serving.engines.http.server_client import ServedModels, ServerClient, request_body
from serving.errors import EngineDeadError, SettingError
from serving.grammar.compiler import GrammarCompiler
from serving.grammar.grammar_state import GrammarState
from serving.request_checks import check_request
from serving.text import Tokenizer, num_logits
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams

_BACKEND = """--structured-outputs-config '{"backend": "guidance"}'"""


def followed(state: GrammarState, output: EngineOutput, server: str) -> EngineOutput:
    """The output up to the end of the text, which is complete when the grammar allows only the end.

    Raises:
        EngineDeadError: the grammar does not allow a token; names the server's address.
        GrammarError: it failed, because it is too ambiguous.
    """
    tokens = list(output.token_ids)
    count = state.accept(tokens)
    if state.is_complete:
        return _ended(output, count)
    if count == len(tokens):
        return output
    if state.may_end:  # an end token of the server that is none of the checkpoint's
        return _ended(output, count)
    raise EngineDeadError(
        f"{server} gave token {tokens[count]}, which the request's grammar does not allow; start vLLM with the "
        f"checkpoint and tokenizer of WEIGHTS_DIR and {_BACKEND}"
    )


def _ended(output: EngineOutput, count: int) -> EngineOutput:
    logprobs = None if output.logprobs is None else output.logprobs[:count]
    return replace(output, token_ids=output.token_ids[:count], logprobs=logprobs, finish_reason="stop")


class HttpEngine:
    """See `serving.engine.Engine`. Its adapters are those that the server has.

    Args:
        client: the client of the server; used on `loop` only, and closed by this engine.
        loop: the client's event loop; stopped by this engine.
        models: what the server serves.
        tokenizer: of the checkpoint that the server has loaded.
        vocab_size: width of that checkpoint's logits.
        max_model_len: maximum number of prompt and output tokens.
        max_num_seqs: limit of running requests.
        max_queue: limit of waiting requests.
    """

    name = "http"

    def __init__(
        self,
        client: ServerClient,
        loop: LoopThread,
        models: ServedModels,
        *,
        tokenizer: Tokenizer,
        vocab_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_queue: int,
    ) -> None:
        self.max_model_len = max_model_len
        self._client, self._loop, self._models = client, loop, models
        self._tokenizer = tokenizer
        self._vocab_size = min(tokenizer.vocab_size, vocab_size)
        self._compiler = GrammarCompiler(tokenizer, vocab_size=vocab_size, is_strict=False)
        self._open = OpenRequests(max_num_seqs=max_num_seqs, max_queue=max_queue)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `serving.engine.Engine`."""
        check_request(
            request,
            max_model_len=self.max_model_len,
            vocab_size=self._vocab_size,
            adapters=self._models.adapters,
        )
        grammar = await self._compile(request)
        body = self._body(request)
        relay = self._open.admit(request.request_id, self._check_alive)
        answer = RequestProgress(request, self._tokenizer, started=relay.started, speculates=True)
        try:
            self._loop.submit(relay.run(self._client.outputs(body)))
            while not answer.is_finished:
                output = await relay.get()
                yield answer.add(output if grammar is None else followed(grammar, output, self._client.url))
        finally:
            self._open.release(request.request_id)
            relay.cancel(self._loop)

    async def health(self, timeout: float = 5.0) -> None:
        """See `serving.engine.Engine`. It waits for a token of any request: its own may be queued after many others."""
        self._check_alive()
        request = GenerationRequest(f"health-{time.monotonic_ns()}", (0,), SamplingParams(max_tokens=1))
        if not await self._open.probe(self._loop, self._client.outputs(self._body(request)), timeout):
            raise EngineDeadError(f"{self._client.url} generated no token within {timeout:g} s")

    def stats(self) -> EngineStats:
        """See `serving.engine.Engine`; the server's blocks are not known."""
        return self._open.stats()

    def close(self) -> None:
        """See `serving.engine.Engine`. The server goes on."""
        if self._open.close():
            self._loop.call(self._client.close())
            self._loop.stop()

    async def _compile(self, request: GenerationRequest) -> GrammarState | None:
        if request.constraint is None:
            return None
        state = self._compiler.find(request.constraint)
        return state or await asyncio.to_thread(self._compiler.compile, request.constraint)

    def _body(self, request: GenerationRequest) -> dict[str, object]:
        model = request.adapter or self._models.base
        return request_body(request, model, tokenizer=self._tokenizer, max_model_len=self.max_model_len)

    def _check_alive(self) -> None:
        if self._open.is_closed:
            raise EngineDeadError("the engine was closed; make a new one")


def create(settings: Settings, checkpoint: Checkpoint) -> HttpEngine:
    """Connect to the server of the settings.

    Raises:
        SettingError: no address, no model of that name, or its context is not known.
        WeightsError: the checkpoint's folder here has no tokenizer, or one of another model.
        EngineDeadError: the server cannot be reached, or refuses the key.
    """
    if settings.engine_url is None:
        raise SettingError("ENGINE=http needs ENGINE_URL, the address of a vLLM server, such as http://127.0.0.1:8000")
    tokenizer = checkpoint.tokenizer
    loop = LoopThread("http-engine")
    try:
        key = None if settings.engine_key is None else settings.engine_key.get_secret_value()
        client: ServerClient = loop.call(ServerClient.open(settings.engine_url, key))
        try:
            models: ServedModels = loop.call(client.models(settings.engine_model))
            max_model_len = _max_model_len(settings.max_model_len, models.max_model_len)
        except BaseException:
            loop.call(client.close())
            raise
    except BaseException:
        loop.stop()
        raise
    return HttpEngine(
        client,
        loop,
        models,
        tokenizer=tokenizer,
        vocab_size=num_logits(checkpoint.folder) or tokenizer.vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
    )


def _max_model_len(ours: int | None, theirs: int | None) -> int:
    known = [length for length in (ours, theirs) if length is not None]
    if not known:
        raise SettingError("the server does not say how many tokens a request may have; set MAX_MODEL_LEN")
    return min(known)
