"""Tracks which tokens a grammar allows next, for one request."""

from __future__ import annotations

from collections.abc import Callable

import llguidance
import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError


class GrammarState:
    """The state of one request's grammar: see `drafter.Grammar`.

    The end token is accepted where the text may end. Tokens that are not allowed leave the state unchanged.

    Args:
        matcher: llguidance's state.
        executor: computes several bitmasks at a time.
        on_failure: called when llguidance fails.
        name: of the constraint in error messages.

    Raises:
        GrammarError: from any method, if llguidance fails, for example because the grammar is too ambiguous for its
            limits. The state cannot be used afterwards.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        executor: llguidance.LLExecutor,
        on_failure: Callable[[], None],
        name: str = "the grammar",
    ) -> None:
        self._matcher = matcher
        self._executor = executor
        self._on_failure = on_failure
        self._name = name

    @property
    def is_complete(self) -> bool:
        """Whether only the end token may follow, or it has been accepted."""
        return bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def accept(self, token_ids: list[int]) -> int:
        """See `drafter.Grammar`."""
        count: int = self._matcher.try_consume_tokens(token_ids)
        if count < len(token_ids):
            self._check()
        return count

    def rollback(self, num_tokens: int) -> None:
        """See `drafter.Grammar`."""
        if not self._matcher.rollback(num_tokens):
            self._check()

    def forced_tokens(self) -> list[int]:
        """Tokens of the text that must come next, as the tokenizer would encode it; often empty."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        self._matcher.unsafe_compute_mask_ptr(bitmask.ctypes.data, bitmask.nbytes)
        self._check()

    def fill_bitmasks(self, token_ids: list[int], bitmasks: NDArray[np.int32]) -> None:
        """See `drafter.Grammar`."""
        if not token_ids:
            return self.fill_bitmask(bitmasks[0])
        self._executor.unsafe_compute_mask_ptr_with_draft_token(
            [(self._matcher, 0, token_ids)], bitmasks.ctypes.data, bitmasks.strides[0], len(bitmasks)
        )
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._on_failure()
            reason = self._matcher.get_error().partition("\n")[0]
            raise GrammarError(f"{self._name} failed after the text so far: {reason}; simplify it")
