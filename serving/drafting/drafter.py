"""The interface of drafters, which propose tokens for speculative decoding.

The target model verifies every draft, so a drafter changes the number of steps that an answer takes, never the answer.

    drafts = drafter.propose(request, max_tokens=8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from serving.types import FinishReason

if TYPE_CHECKING:  # its kernels need packages that the check of a GPU does without
    from serving.drafting.draft_model import DraftModel


class Grammar(Protocol):
    """The grammar state of one request, which has consumed exactly the request's output tokens.

    A drafter may advance it, but must roll it back before it returns.
    """

    @property
    def is_complete(self) -> bool:
        """Whether only the end token may follow."""
        ...

    def accept(self, token_ids: list[int]) -> int:
        """Consume the longest allowed prefix of `token_ids`; return its length."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` that were accepted."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens of the text that the grammar forces next; often empty."""
        ...

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Set the bit of every token that may come next and clear the others.

        bitmask: [ceil(V / 32)], lowest bit first.
        """
        ...

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """Fill a bitmask for the next token, and one for the token after each prefix of `token_ids`.

        bitmasks: [1 + len(token_ids), ceil(V / 32)]; rows after the first token that is not allowed are unchanged.
        """
        ...


class DraftRequest(Protocol):
    """The attributes of a request that a drafter reads; each engine has its own class."""

    @property
    def request_id(self) -> str:
        """Unique among the requests in flight."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output tokens; read-only."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        ...

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens generated so far."""
        ...

    @property
    def grammar(self) -> Grammar | None:
        """The grammar state after all of `output_token_ids`; None without a grammar."""
        ...

    @property
    def adapter(self) -> str | None:
        """The name of the request's LoRA adapter; None for the base model."""
        ...

    @property
    def draft_model(self) -> DraftModel | None:
        """The draft model that was trained for the request's adapter; None without one, and for the base."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended; None while it runs."""
        ...


class Drafter:
    """Proposes draft tokens for requests; this one none, so that each step yields one token per request.

    Used only by the thread that runs the model.
    """

    def begin_step(self, num_requests: int) -> None:
        """Start a step in which up to `num_requests` requests may have drafts."""

    def propose(self, request: DraftRequest, max_tokens: int) -> list[int]:
        """At most `max_tokens` token ids that may follow `request.token_ids`.

        It may advance `request.grammar` to find them, and rolls it back.
        """
        return []

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        """Report that the model accepted `num_accepted` of the last `num_drafts` proposed for `request`."""

    def sources(self, request: DraftRequest, num_tokens: int) -> tuple[str, ...]:
        """Names of the sources of the first `num_tokens` of the last drafts proposed for `request`."""
        return ("draft",) * num_tokens

    def finish(self, request: DraftRequest) -> None:
        """Learn from a request that has finished or was aborted, and drop its state."""
