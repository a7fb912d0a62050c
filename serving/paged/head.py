"""The head, computed for the tokens that can be chosen and for no others.

Owns: which logits a step needs. Where a request has a grammar, its drafts are followed to learn which
tokens each row may choose from: of the Honeycomb grammar's rows 60 % have one, and 97 % at most 256, out
of 49,152. Only rows that may choose among more get the whole vocabulary. A logit does not depend on
which others are computed, so the tokens chosen are the same. Knows nothing of how they are chosen.

    rows = Head(model, vocab_size=49152).logits(hidden, logit_rows, scheduled)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.errors import GrammarError
from serving.kernels.base import ChosenProducts
from serving.paged.clock import StepClock
from serving.paged.scheduler import ScheduledRequest

Ids = NDArray[np.int32]
Row = NDArray[np.float32]

MOST_ALLOWED = 256  # beyond, the head's own order of memory is quicker than looking tokens up


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


class LogitsModel(Protocol):
    """What a model offers here; see `models.llama`."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden] → [rows, vocab] float32."""
        ...

    def compute_allowed_logits(
        self, hidden: Tensor, rows: Tensor, bitmasks: Tensor, most: int
    ) -> ChosenProducts:
        """hidden: [any, hidden]; rows: [n] int32; bitmasks: [n, words] int32, of up to `most` tokens."""
        ...


class Head:
    """Computes what `Sampler` will look at.

    Args:
        model: computes logits of a whole row, or of some tokens in some rows.
        vocab_size: width of the logits.
        clock: gets the time of the grammar and of the head.
    """

    def __init__(self, model: LogitsModel, *, vocab_size: int, clock: StepClock | None = None) -> None:
        self._model = model
        self._clock = clock or StepClock()
        self._bitmasks = np.zeros((0, -(-vocab_size // 32)), dtype=np.int32)

    def logits(self, hidden: Tensor, rows: Ids, scheduled: Iterable[ScheduledRequest]) -> list[RowLogits]:
        """hidden: [num_tokens, hidden]; rows: [n] of it: a sampling request's last, and one a draft."""
        bitmasks, unknown = self._allowed([item for item in scheduled if item.samples])
        self._clock.lap("grammar")
        chosen = self._model.compute_allowed_logits(
            hidden, torch.from_numpy(rows).to(hidden.device), torch.from_numpy(bitmasks), MOST_ALLOWED
        )
        counts, token_ids, values = chosen.counts.tolist(), chosen.columns.numpy(), chosen.products.numpy()
        result = [
            RowLogits(logits[:count], ids[:count])
            for count, ids, logits in zip(counts, token_ids, values, strict=True)
        ]
        whole = sorted(unknown.union(i for i, count in enumerate(counts) if count < 0))
        if whole:
            for i, logits in zip(whole, self._compute_whole(hidden, rows[whole]), strict=True):
                result[i] = RowLogits(logits)
        self._clock.lap("head")
        return result

    def _compute_whole(self, hidden: Tensor, rows: Ids) -> Row:
        chosen = hidden.index_select(0, torch.from_numpy(rows).to(hidden.device))
        logits: Row = self._model.compute_logits(chosen).cpu().numpy()
        return logits

    def _allowed(self, sampling: Sequence[ScheduledRequest]) -> tuple[NDArray[np.int32], set[int]]:
        """A bitmask a row, and the rows of which none is known.

        Rows behind a draft that the grammar refuses are never looked at: no tokens.
        """
        starts = [0]
        for item in sampling:
            starts.append(starts[-1] + 1 + len(item.draft_token_ids))
        bitmasks = self._clear_bitmasks(starts[-1])
        unknown = set[int]()
        for item, start, end in zip(sampling, starts, starts[1:], strict=False):
            grammar = item.request.grammar
            try:
                if grammar is None:
                    unknown.update(range(start, end))
                else:
                    grammar.fill_bitmasks(item.draft_token_ids, bitmasks[start:end])
            except GrammarError:  # it gave up for good, and will tell the sampler so again
                unknown.update(range(start, end))
        return bitmasks, unknown

    def _clear_bitmasks(self, rows: int) -> NDArray[np.int32]:
        if len(self._bitmasks) < rows:
            self._bitmasks = np.zeros((rows, self._bitmasks.shape[1]), np.int32)
        bitmasks = self._bitmasks[:rows]
        bitmasks.fill(0)
        return bitmasks
