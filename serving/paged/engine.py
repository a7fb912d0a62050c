"""The package's own engine: the front that coroutines talk to, and how its parts are put together.

Owns: what a request must pass before the model's thread sees it, and the text that comes back. Knows
nothing of steps (`core`), of memory (`block_manager`) or of tensors (`model_runner`).

    engine = create(Settings(engine="paged"))
    async for delta in engine.generate(request): ...
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from serving.checks import check_request
from serving.config import Settings
from serving.engine import Engine
from serving.errors import ContextLengthError, EngineDeadError
from serving.models.config import read_config
from serving.models.loader import load_model
from serving.paged import choices
from serving.paged.block_manager import BlockManager
from serving.paged.clock import StepClock
from serving.paged.core import EngineCore
from serving.paged.grammar import GrammarCompiler, GrammarState
from serving.paged.model_runner import ModelRunner
from serving.paged.request import Request
from serving.paged.scheduler import Scheduler
from serving.paged.stream import TextFollower
from serving.paged.watch import StepWatch
from serving.text import Tokenizer
from serving.types import EngineStats, GenerationOutput, GenerationRequest, SamplingParams


class PagedEngine:
    """See `serving.engine.Engine`.

    The end token is never among a delta's tokens. Where a grammar leaves nothing but the end token,
    the answer stops without a pass for that.

    Args:
        core: the model's thread.
        block_manager: asked how many blocks there are and how many are free.
        tokenizer: for the text of deltas.
        grammars: compiles requests' grammars, in a thread of its own.
        max_model_len: prompt and output tokens of a request.
        vocab_size: ids of prompts are below it.
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
    ) -> None:
        self.max_model_len = max_model_len
        self._core = core
        self._blocks = block_manager
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._grammar_thread = ThreadPoolExecutor(1, thread_name_prefix="paged-grammar")
        self._grammar_thread.submit(grammars.warm_up)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """See `Engine.generate`."""
        self._core.raise_if_dead()
        self._check(request)
        stream = self._core.open(request.request_id)
        try:
            grammar = await self._compile(request.grammar)
            seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
            self._core.submit(stream, Request(request, seed=seed, grammar=grammar))
            follower = TextFollower(self._tokenizer, request.sampling.stop)
            while True:
                output = follower.push(await self._core.receive(stream))
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._core.discard(stream)

    async def health(self, timeout: float = 5.0) -> None:
        """See `Engine.health`. Any request's token will do; a probe of its own sees to it that one comes."""
        probe = GenerationRequest(f"health-{secrets.token_hex(8)}", (0,), SamplingParams(max_tokens=1))
        stream = self._core.open_probe(probe.request_id)
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
        self._grammar_thread.shutdown(wait=False)

    def _check(self, request: GenerationRequest) -> None:
        check_request(request, max_model_len=self.max_model_len, vocab_size=self._vocab_size)
        longest = min(len(request.prompt_token_ids) + request.sampling.max_tokens, self.max_model_len)
        needed = self._blocks.num_blocks_for(longest - 1)  # the last token is never computed
        if needed > self._blocks.num_blocks:
            raise ContextLengthError(
                f"the prompt's {len(request.prompt_token_ids)} tokens and max_tokens "
                f"{request.sampling.max_tokens} need {needed} KV blocks of {self._blocks.block_size} tokens, "
                f"and there are {self._blocks.num_blocks}; ask for fewer tokens, or set NUM_BLOCKS higher"
            )

    async def _compile(self, text: str | None) -> GrammarState | None:
        if text is None:
            return None
        state = self._grammars.find(text)
        if state is not None:
            return state
        try:
            future = self._grammar_thread.submit(self._grammars.compile, text)
        except RuntimeError:  # shut down meanwhile
            self._core.raise_if_dead()
            raise
        return await asyncio.wrap_future(future)


def create(settings: Settings) -> Engine:
    """Load the model and start its thread. The weights must have been verified.

    Raises:
        WeightsError: they are not a model that this engine computes.
        ContextLengthError: MAX_MODEL_LEN is over the model's own context.
    """
    config = read_config(settings.weights_dir)
    max_model_len = choices.max_model_len(settings, config)
    tokenizer = Tokenizer.from_dir(settings.weights_dir)
    num_blocks = settings.num_blocks or choices.default_num_blocks(settings, max_model_len)
    blocks = BlockManager(
        num_blocks=num_blocks, block_size=settings.block_size, prefix_caching=settings.prefix_caching
    )
    model = load_model(
        settings.weights_dir, num_threads=settings.num_threads, activations=choices.activations(settings)
    )
    scheduler = Scheduler(
        block_manager=blocks,
        drafter=choices.make_drafter(settings, tokenizer, model.weights.embedding, model.row_cost),
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=max_model_len,
        max_draft_tokens=0 if settings.speculation == "off" else settings.max_draft_tokens,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
    )
    clock = StepClock()
    core = EngineCore(
        scheduler,
        ModelRunner(model, num_blocks=num_blocks, block_size=settings.block_size, clock=clock),
        watch=StepWatch(
            blocked_limit=5.0, busy_limit=choices.busy_limit(config, settings.max_num_batched_tokens)
        ),
        max_in_flight=settings.max_num_seqs + settings.max_queue,
        clock=clock,
    )
    return PagedEngine(
        core=core,
        block_manager=blocks,
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer, vocab_size=config.vocab_size),
        max_model_len=max_model_len,
        vocab_size=config.vocab_size,
    )
