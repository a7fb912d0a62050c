"""The state of one request inside the paged engine.

Owns: which tokens a request has, how many of them are computed, which KV blocks it holds, and its
counters. Knows nothing of scheduling, of memory or of the model: others move it along. A request
is prompt and output in one list; `num_computed_tokens` catches up with its length, whatever the
difference is called (prefill, decoding, recomputation after a preemption).

    request = Request(GenerationRequest("id-1", (1, 2, 3)), seed=0)
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.types import FinishReason, GenerationRequest


class RequestStatus(Enum):
    """Where a request is. A preempted request is waiting again."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Grammar(Protocol):
    """The grammar state of one request; it has consumed exactly the request's output tokens.

    A drafter may move it ahead, if it rolls back before it returns.
    """

    @property
    def is_complete(self) -> bool:
        """Nothing but the end token may follow."""
        ...

    def accept(self, token_ids: list[int]) -> int:
        """Consume the longest allowed prefix of `token_ids`; return its length."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` that were accepted."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens of the text that must come next; often empty."""
        ...

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Set the bit of every token that may come next and clear the others; 32 tokens a word."""
        ...

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """The same for a row here, and one after each of `token_ids` as far as they may follow.

        bitmasks: [1 + len(token_ids), words]; rows behind a token that is refused are left as they are.
        """
        ...


class Request:
    """One request, from admission to its last token."""

    __slots__ = (
        "accepted_token_count",
        "adapter",
        "block_ids",
        "cached_token_count",
        "draft_token_count",
        "finish_reason",
        "grammar",
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

    def __init__(self, source: GenerationRequest, *, seed: int, grammar: Grammar | None = None) -> None:
        self.request_id = source.request_id
        self.sampling = source.sampling
        self.max_tokens = source.sampling.max_tokens
        self.adapter = source.adapter
        self.seed = seed
        self.grammar = grammar
        self.token_ids = list(source.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.block_ids: list[int] = []
        self.num_registered_blocks = 0  # leading blocks that the prefix cache was told about
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.model_passes = 0
        self.num_preemptions = 0
        self.cached_token_count = 0
        self.draft_token_count = 0
        self.accepted_token_count = 0

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.name}, {self.num_computed_tokens}/{self.num_tokens}"
            f" computed, {len(self.block_ids)} blocks)"
        )
