"""The package's own engine: its asynchronous front end, and its construction from settings."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType

from serving.adapters.adapter_store import AdapterStore
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.constraints import Constraint
from serving.drafting.load_drafter import DraftModelLoader
from serving.drafting.speculative import LinearCost, MeasuredCost
from serving.engine import Engine
from serving.engines.paged import options
from serving.engines.paged.adapters import check_golden, draft_model_of, open_adapters
from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.core import EngineCore
from serving.engines.paged.cuda_start import prepare_cuda
from serving.engines.paged.device_choice import find_device
from serving.engines.paged.kv_budget import CacheRoom, choose_num_blocks
from serving.engines.paged.logits_processor import make_processor
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.request import Request
from serving.engines.paged.scheduler import Scheduler
from serving.engines.paged.step import StepClock
from serving.engines.paged.stream import DeltaBuilder
from serving.engines.paged.watch import StepWatch
from serving.errors import ContextLengthError, EngineDeadError
from serving.grammar.compiler import GrammarCompiler
from serving.grammar.grammar_state import GrammarState
from serving.kernels.lora import LoraAdapter
from serving.kernels.select import Device
from serving.models.config import read_config
from serving.models.loader import load_model
from serving.request_checks import check_request
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams


class PagedEngine:
    """See `serving.engine.Engine`.

    The end token is never among a delta's tokens. If a grammar allows only the end token, the answer ends without a
    step for it.
    """

    name = "paged"

    def __init__(
        self,
        *,
        core: EngineCore,
        block_manager: BlockManager,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        max_model_len: int,
        vocab_size: int,
        adapters: AdapterStore[LoraAdapter],
        adapter_tokenizers: Mapping[str, Tokenizer] = MappingProxyType({}),
    ) -> None:
        self.max_model_len = max_model_len
        self._core = core
        self._blocks = block_manager
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._adapters = adapters
        self._adapter_tokenizers = adapter_tokenizers
        # Several, so that a grammar that is refused late holds up no other.
        self._grammar_threads = ThreadPoolExecutor(4, thread_name_prefix="paged-grammar")
        self._grammar_threads.submit(grammars.warm_up)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        self._core.raise_if_dead()
        self._check(request)
        stream = self._core.open(request.request_id)
        tokenizer = self._adapter_tokenizers.get(request.adapter or "", self._tokenizer)
        try:
            async with self._adapters.lease(request.adapter, self._core.raise_if_dead) as lora:
                self._core.submit(stream, await self._make_request(request, lora))
                deltas = DeltaBuilder(tokenizer, request.sampling.stop)
                while True:
                    output = deltas.push(await self._core.receive(stream))
                    yield output
                    if output.finish_reason is not None:
                        return
        finally:
            self._core.discard(stream)

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`. It waits for a token of any request, and adds a request of its own."""
        probe = GenerationRequest(f"health-{secrets.token_hex(8)}", (0,), SamplingParams(max_tokens=1))
        stream = self._core.open(probe.request_id, is_probe=True)
        try:
            async with asyncio.timeout(timeout):
                self._core.submit(stream, Request(probe, seed=0))
                await self._core.receive(stream)
        except TimeoutError as error:
            raise EngineDeadError(f"the engine gave no token within {timeout:g} s; restart it") from error
        finally:
            self._core.discard(stream)

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        running = self._core.num_running
        return EngineStats(
            num_running=running,
            num_waiting=max(0, self._core.num_in_flight - running),
            num_free_blocks=self._blocks.num_free_blocks,
            num_blocks=self._blocks.num_blocks,
            num_steps=self._core.num_steps,
            step_seconds=self._core.step_seconds,
        )

    def close(self) -> None:
        """See `Engine.close`."""
        self._core.close()
        self._grammar_threads.shutdown(wait=False)
        self._adapters.close()

    def _check(self, request: GenerationRequest) -> None:
        check_fit(
            request,
            self._blocks,
            max_model_len=self.max_model_len,
            vocab_size=self._vocab_size,
            adapters=self._adapters.entries,
        )

    async def _make_request(self, request: GenerationRequest, lora: LoraAdapter | None) -> Request:
        grammar = await self._compile(request.constraint)
        seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        processor = make_processor(request, self._tokenizer.eos_token_ids)
        return Request(
            request,
            seed=seed,
            grammar=grammar,
            logits_processor=processor,
            lora=lora,
            draft_model=draft_model_of(lora),
        )

    async def _compile(self, constraint: Constraint | None) -> GrammarState | None:
        if constraint is None:
            return None
        state = self._grammars.find(constraint)
        if state is not None:
            return state
        try:
            future = self._grammar_threads.submit(self._grammars.compile, constraint)
        except RuntimeError:  # the engine has just been closed
            self._core.raise_if_dead()
            raise
        return await asyncio.wrap_future(future)


def check(weights_dir: Path) -> None:
    """Check by config.json whether this engine supports a checkpoint.

    Raises:
        WeightsError: it does not; the message says why.
    """
    read_config(weights_dir)


def create(settings: Settings, checkpoint: Checkpoint) -> Engine:
    """Load the model and start its thread. The weights must have been verified.

    Raises:
        WeightsError: they are not a model that this engine supports on this device.
        ContextLengthError: MAX_MODEL_LEN exceeds the model's context length.
        SettingError: a setting has a value that only another engine supports, or would be ignored on this device.
        EngineNotAvailableError: what the device needs is not installed.
        AdapterError: the list of adapters is wrong, or a pinned one cannot be loaded.
    """
    max_draft_tokens = options.max_draft_tokens(settings)
    config = read_config(settings.weights_dir)
    device = find_device(settings, config)
    max_model_len = options.max_model_len(settings, config)
    tokenizer, known, more_tokens = checkpoint.tokenizer, checkpoint.adapters, checkpoint.adapter_tokenizers
    block_size = settings.block_size or options.DEFAULT_BLOCK_SIZE
    max_num_batched_tokens = settings.max_num_batched_tokens or options.DEFAULT_MAX_NUM_BATCHED_TOKENS
    model = load_model(
        settings.weights_dir,
        device=device,
        num_threads=settings.num_threads,
        activations=options.activations(settings),
    )
    room = CacheRoom(
        block_size,
        max_model_len,
        max_num_batched_tokens,
        adapter_bytes=options.adapter_bytes(settings),
    )
    num_blocks = choose_num_blocks(settings, model, room, device)
    blocks = BlockManager(num_blocks=num_blocks, block_size=block_size, prefix_caching=settings.prefix_caching)
    clock = StepClock()
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=block_size, device=device.torch_name, clock=clock)
    cost = MeasuredCost(LinearCost(model.row_cost))
    if device is Device.CUDA:
        prepare_cuda(settings, model, runner, room, cost)
    draft_models = DraftModelLoader(tokenizer, lambda: model.weights.embedding)
    scheduler = Scheduler(
        block_manager=blocks,
        drafter=options.make_drafter(settings, draft_models, cost),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_share=options.long_share(model.row_cost, max_num_batched_tokens),
        max_model_len=max_model_len,
        max_draft_tokens=max_draft_tokens,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
    )
    core = EngineCore(
        scheduler,
        runner,
        watch=StepWatch(blocked_limit=5.0, busy_limit=options.busy_limit(config, max_num_batched_tokens, device)),
        max_in_flight=settings.max_num_seqs + settings.max_queue,
        clock=clock,
        cost=None if device is Device.CUDA else cost,  # there the recorded graphs were timed
    )
    fits = partial(check_fit, blocks=blocks, max_model_len=max_model_len, vocab_size=config.vocab_size, adapters=())
    try:
        golden = partial(check_golden, core, fits)
        adapters = open_adapters(settings, known, model.weights, draft_models, golden, more_tokens)
    except BaseException:
        core.close()
        raise
    return PagedEngine(
        core=core,
        block_manager=blocks,
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer, vocab_size=config.vocab_size),
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
        adapters=adapters,
        adapter_tokenizers=more_tokens,
    )


def check_fit(
    request: GenerationRequest,
    blocks: BlockManager,
    *,
    max_model_len: int,
    vocab_size: int,
    adapters: Collection[str],
) -> None:
    """Check a request before it is queued; see `check_request`.

    Raises:
        InvalidRequestError: or its subclass that says which limit was broken.
    """
    check_request(request, max_model_len=max_model_len, vocab_size=vocab_size, adapters=adapters)
    longest = min(len(request.prompt_token_ids) + request.sampling.max_tokens, max_model_len)
    needed = blocks.num_blocks_for(longest - 1)  # the last token is never fed to the model
    if needed > blocks.num_blocks:
        raise ContextLengthError(
            f"the prompt's {len(request.prompt_token_ids)} tokens and max_tokens "
            f"{request.sampling.max_tokens} need {needed} KV blocks of {blocks.block_size} tokens, "
            f"and there are {blocks.num_blocks}; ask for fewer tokens, or set NUM_BLOCKS higher"
        )
