"""A complete paged engine on the small model, with parts that a test can choose."""

from __future__ import annotations

from serving.adapters.adapter_store import AdapterStore
from serving.drafting.drafter import Drafter
from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.core import EngineCore
from serving.engines.paged.engine import PagedEngine
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.scheduler import Scheduler
from serving.engines.paged.watch import StepWatch
from serving.grammar.compiler import GrammarCompiler
from serving.models.llama import LlamaForCausalLM
from serving.text import Tokenizer
from tests.serving.engines.paged.adapter_folders import no_adapters


def assemble(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    grammars: GrammarCompiler,
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 512,
    num_blocks: int = 256,
    prefix_caching: bool = True,
    drafter: Drafter | None = None,
    max_draft_tokens: int = 8,
    max_model_len: int = 1024,
    adapters: AdapterStore | None = None,
) -> PagedEngine:
    """Make an engine on a model that several engines share."""
    blocks = BlockManager(num_blocks=num_blocks, block_size=16, prefix_caching=prefix_caching)
    scheduler = Scheduler(
        block_manager=blocks,
        drafter=drafter or Drafter(),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        long_share=max(1, max_num_batched_tokens // 4),
        max_model_len=max_model_len,
        max_draft_tokens=max_draft_tokens if drafter else 0,
        eos_token_ids=frozenset(tokenizer.eos_token_ids),
    )
    runner = ModelRunner(model, num_blocks=num_blocks, block_size=16)
    return PagedEngine(
        core=EngineCore(scheduler, runner, watch=StepWatch(blocked_limit=60.0, busy_limit=60.0), max_in_flight=64),
        block_manager=blocks,
        tokenizer=tokenizer,
        grammars=grammars,
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        adapters=adapters or no_adapters(),
    )
