"""Guesses at the tokens to come.

Owns: the drafter's side of speculation. A draft costs little and is verified in the pass that
computes it, so a drafter may propose anything: it changes how many passes an answer takes, never
the answer. Knows nothing of scheduling or of the model.

    drafts = drafter.propose(request, max_tokens=8)
"""

from __future__ import annotations

from typing import Protocol

from serving.paged.request import Request


class Drafter(Protocol):
    """Proposes tokens for requests. Used by the model's thread only."""

    def begin_step(self, num_requests: int) -> None:
        """A pass is being put together in which so many requests may have drafts."""
        ...

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """At most `max_tokens` ids of the vocabulary that may follow `request.token_ids`.

        `request.grammar` may be moved ahead to find them, if it is rolled back.
        """
        ...

    def observe(self, request: Request, *, num_drafts: int, num_accepted: int) -> None:
        """How many of the last `num_drafts` proposed for `request` the model agreed with."""
        ...

    def finish(self, request: Request) -> None:
        """`request` has ended, whether by itself or by its caller: learn from it, and forget it."""
        ...


class NoDrafter:
    """One token a pass."""

    def begin_step(self, num_requests: int) -> None:
        """Nothing to settle."""

    def propose(self, request: Request, max_tokens: int) -> list[int]:
        """Nothing."""
        return []

    def observe(self, request: Request, *, num_drafts: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def finish(self, request: Request) -> None:
        """Nothing to forget."""
