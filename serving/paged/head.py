"""The head, computed for the tokens that can be chosen and for no others.

Owns: which logits a step needs. Where a request has a grammar, its drafts are followed to learn which
tokens each row may choose from: of the Honeycomb grammar's rows 60 % have one, and 97 % at most 256, out
of 49,152. Only rows that may choose among more get the whole vocabulary. A logit does not depend on
which others are computed, so the tokens chosen are the same. Knows nothing of how they are chosen.

    rows = Head(model.compute_logits).logits(hidden, scheduled)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.errors import GrammarError
from serving.paged.clock import StepClock
from serving.paged.request import Grammar
from serving.paged.scheduler import ScheduledRequest

Ids = NDArray[np.int32]
Row = NDArray[np.float32]

MOST_ALLOWED = 256  # beyond, the head's own order of memory is quicker than looking tokens up
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_NONE: Ids = np.empty(0, np.int32)
_CERTAIN: Row = np.zeros(1, np.float32)


@dataclass(frozen=True, slots=True)
class RowLogits:
    """Logits of one row.

    Args:
        logits: [vocab] or [n].
        token_ids: [n], ascending: the tokens that a grammar allows, and `logits` are theirs. None: `logits`
            are those of the whole vocabulary, and a grammar has not been asked.
    """

    logits: Row
    token_ids: Ids | None = None


class Head:
    """Computes what `Sampler` will look at.

    Args:
        compute_logits: hidden [rows, hidden] and token ids [n] int32, or None for all → [rows, n].
        vocab_size: width of the logits.
        clock: gets the time of the grammar and of the head.
    """

    def __init__(
        self,
        compute_logits: Callable[[Tensor, Tensor | None], Tensor],
        *,
        vocab_size: int,
        clock: StepClock | None = None,
    ) -> None:
        self._compute_logits = compute_logits
        self._clock = clock or StepClock()
        self._bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)

    def logits(self, hidden: Tensor, scheduled: Iterable[ScheduledRequest]) -> list[RowLogits]:
        """hidden: [rows, hidden]; a row a sampling request, and one more for each of its drafts."""
        allowed = [ids for item in scheduled if item.samples for ids in self._allowed(item)]
        self._clock.lap("grammar")
        rows = [RowLogits(_CERTAIN, ids) for ids in allowed]  # right where there is no choice
        whole = [i for i, ids in enumerate(allowed) if ids is None]
        if whole:
            for i, logits in zip(whole, self._compute(hidden, whole, None), strict=True):
                rows[i] = RowLogits(logits)
        few = {i: ids for i, ids in enumerate(allowed) if ids is not None and ids.size > 1}
        if few:
            every = np.unique(np.concatenate(list(few.values())))
            table = self._compute(hidden, list(few), every)
            for (i, ids), logits in zip(few.items(), table, strict=True):
                rows[i] = RowLogits(logits[np.searchsorted(every, ids)], ids)
        self._clock.lap("head")
        return rows

    def _compute(self, hidden: Tensor, rows: Sequence[int], token_ids: Ids | None) -> Row:
        if len(rows) < hidden.shape[0]:
            hidden = hidden[torch.tensor(rows, device=hidden.device)]
        wanted = None if token_ids is None else torch.from_numpy(token_ids).to(hidden.device)
        logits: Row = self._compute_logits(hidden, wanted).cpu().numpy()
        return logits

    def _allowed(self, item: ScheduledRequest) -> list[Ids | None]:
        """For each row of a request the tokens it may choose from; None where they are many or unknown.

        Rows behind a draft that the grammar refuses, or behind the end, are never looked at: no tokens.
        """
        grammar, drafts = item.request.grammar, item.draft_token_ids
        if grammar is None:
            return [None] * (1 + len(drafts))
        allowed: list[Ids | None] = []
        followed = 0
        try:
            for draft in drafts:
                allowed.append(self._tokens(grammar))
                if not grammar.accept([draft]):
                    break
                followed += 1
                if grammar.is_complete:
                    break
            else:
                allowed.append(self._tokens(grammar))
            grammar.rollback(followed)
        except GrammarError:  # it gave up for good, and will tell the sampler so again
            return [None] * (1 + len(drafts))
        return allowed + [_NONE] * (1 + len(drafts) - len(allowed))

    def _tokens(self, grammar: Grammar) -> Ids | None:
        grammar.fill_bitmask(self._bitmask)
        words = np.flatnonzero(self._bitmask)
        if words.size > MOST_ALLOWED:
            return None
        which, bits = np.nonzero(self._bitmask[words].view(np.uint32)[:, None] & _BITS)
        return (words[which] * 32 + bits).astype(np.int32) if which.size <= MOST_ALLOWED else None
