"""The state of one request inside the paged engine.

Prompt and output are one list of tokens, and `num_computed_tokens` catches up with its length. Prefill, decoding and
recomputation after a preemption differ only in how far behind it is.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from serving.drafting.drafter import Grammar
from serving.engines.paged.logits_processor import LogitsProcessor
from serving.types import FinishReason, GenerationRequest

if TYPE_CHECKING:  # its kernels need packages that the check of a GPU does without
    from serving.drafting.draft_model import DraftModel


class RequestStatus(Enum):
    """The state of a request in the scheduler; a preempted request is waiting again."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Request:
    """One request, from admission to its last token.

    Args:
        source: the caller's request.
        seed: the seed for sampling.
        grammar: the state of its constraint; None for free text.
        logits_processor: applies its penalties and `min_tokens`; None if it has neither.
        lora: the matrices of its adapter, for the model runner; None without an adapter.
        draft_model: the draft model of its adapter; None without.
    """

    __slots__ = (
        "accepted_token_count",
        "adapter",
        "block_ids",
        "cached_token_count",
        "draft_model",
        "draft_token_count",
        "finish_reason",
        "grammar",
        "logits_processor",
        "lora",
        "max_tokens",
        "model_passes",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "request_id",
        "sampling",
        "seed",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        source: GenerationRequest,
        *,
        seed: int,
        grammar: Grammar | None = None,
        logits_processor: LogitsProcessor | None = None,
        lora: object | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        self.request_id = source.request_id
        self.sampling = source.sampling
        self.max_tokens = source.sampling.max_tokens
        self.adapter = source.adapter
        self.seed = seed
        self.grammar = grammar
        self.logits_processor = logits_processor
        self.lora = lora
        self.draft_model = draft_model
        self.token_ids = list(source.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        self.num_registered_blocks = 0  # leading blocks that are in the prefix cache
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.model_passes = 0
        self.num_preemptions = 0
        self.cached_token_count = 0
        self.draft_token_count = 0
        self.accepted_token_count = 0

    @property
    def num_tokens(self) -> int:
        """Number of prompt and output tokens so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def takes_largest(self) -> bool:
        """Whether tokens are chosen only by the largest logit of those that grammar and `min_tokens` allow."""
        sampling, processor = self.sampling, self.logits_processor
        keeps_order = processor is None or processor.keeps_order
        return sampling.temperature == 0.0 and sampling.logprobs is None and keeps_order

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, {self.num_computed_tokens}/{self.num_tokens}"
            f" computed, {len(self.block_ids)} blocks)"
        )
