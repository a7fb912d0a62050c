"""A complete paged engine on the history model: real queues, threads, grammars and text, but no weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from serving.adapters.adapter_store import AdapterStore
from serving.constraints import LarkConstraint
from serving.drafting.drafter import Drafter
from serving.drafting.speculative import MeasuredCost
from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.core import EngineCore
from serving.engines.paged.engine import PagedEngine
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.sampler import RunnerOutput
from serving.engines.paged.scheduler import Scheduler
from serving.engines.paged.step import SchedulerOutput, StepClock
from serving.engines.paged.watch import StepWatch
from serving.grammar.compiler import GrammarCompiler
from serving.types import (
    FinishReason,
    GenerationOutput,
    GenerationRequest,
    RequestMetrics,
    SamplingParams,
    TokenLogprob,
)
from tests.serving.engines.paged.adapter_folders import no_adapters
from tests.serving.engines.paged.block_checks import check_integrity
from tests.serving.engines.paged.paged_fakes import HistoryModel, logits_of, seed_of
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
VOCAB = TOKENIZER.vocab_size
EOS = TOKENIZER.eos_token_ids[0]


class GatedRunner:
    """A model runner whose steps a test can block or make fail."""

    def __init__(self, runner: ModelRunner) -> None:
        self.inner = runner
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: BaseException | None = None

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        self.entered.set()
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.inner.execute(output)


class CheckedScheduler(Scheduler):
    """A scheduler that checks all blocks after every step."""

    def __init__(self, *, block_manager: BlockManager, **options) -> None:
        super().__init__(block_manager=block_manager, **options)
        self.checked = block_manager

    def update_from_output(self, output, sampled_token_ids):
        updates = super().update_from_output(output, sampled_token_ids)
        check_integrity(self.checked, self.requests)
        return updates


@dataclass
class Parts:
    """The engine, and the parts of it that tests use."""

    engine: PagedEngine
    runner: GatedRunner
    core: EngineCore
    blocks: BlockManager

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.gate.set()
        self.engine.close()


def make_engine(
    *,
    num_blocks: int = 400,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_queue: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 400,
    blocked_limit: float = 20.0,
    drafter: Drafter | None = None,
    max_draft_tokens: int = 0,
    prefix_caching: bool = True,
    adapters: AdapterStore | None = None,
    cost: MeasuredCost | None = None,
) -> Parts:
    """Make an engine as `create` does, on the history model."""
    blocks = BlockManager(num_blocks=num_blocks, block_size=block_size, prefix_caching=prefix_caching)
    scheduler = CheckedScheduler(
        block_manager=blocks,
        drafter=drafter or Drafter(),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_share=max(1, max_num_batched_tokens // 4),
        max_model_len=max_model_len,
        max_draft_tokens=max_draft_tokens,
        eos_token_ids=frozenset({EOS}),
    )
    model = HistoryModel(VOCAB)
    clock = StepClock()
    runner = GatedRunner(ModelRunner(model, num_blocks=num_blocks, block_size=block_size, clock=clock))
    watch = StepWatch(blocked_limit=blocked_limit, busy_limit=20.0)
    core = EngineCore(scheduler, runner, watch=watch, max_in_flight=max_num_seqs + max_queue, clock=clock, cost=cost)
    engine = PagedEngine(
        core=core,
        block_manager=blocks,
        tokenizer=TOKENIZER,
        grammars=GrammarCompiler(TOKENIZER, vocab_size=VOCAB),
        max_model_len=max_model_len,
        vocab_size=VOCAB,
        adapters=adapters or no_adapters(),
    )
    return Parts(engine, runner, core, blocks)


def ask(
    name: str, prompt: Sequence[int] = (5, 6, 7), grammar: str | None = None, **sampling: object
) -> GenerationRequest:
    """A request, 20 tokens long unless said otherwise."""
    return GenerationRequest(
        name,
        tuple(prompt),
        SamplingParams(**{"max_tokens": 20, **sampling}),
        LarkConstraint(grammar) if grammar is not None else None,
    )


@dataclass(frozen=True)
class Answer:
    """The joined deltas of a request."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    metrics: RequestMetrics
    logprobs: tuple[TokenLogprob, ...]


async def collect(engine: PagedEngine, request: GenerationRequest) -> Answer:
    """Read a request to its end, checking that only the last delta says how it ended."""
    outputs: list[GenerationOutput] = [output async for output in engine.generate(request)]
    assert all(o.finish_reason is None and o.metrics is None for o in outputs[:-1])
    token_ids = tuple(token_id for output in outputs for token_id in output.token_ids)
    logprobs = tuple(logprob for output in outputs for logprob in output.logprobs)
    shown = () if request.sampling.logprobs is None else token_ids
    assert tuple(logprob.token_id for logprob in logprobs) == shown
    metrics = outputs[-1].metrics
    assert metrics is not None
    assert metrics.output_token_count == len(token_ids)
    return Answer("".join(o.text for o in outputs), token_ids, outputs[-1].finish_reason, metrics, logprobs)


def run(engine: PagedEngine, request: GenerationRequest) -> Answer:
    """`collect` in an event loop of its own."""
    return asyncio.run(collect(engine, request))


def expected_tokens(prompt: Sequence[int], max_tokens: int = 20) -> tuple[int, ...]:
    """Plain greedy decoding of the history model."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        token_id = int(logits_of(seed_of(tokens), VOCAB).argmax())
        if token_id == EOS:
            break
        tokens.append(token_id)
    return tuple(tokens[len(prompt) :])
