"""Compute logits only for the tokens that a request's grammar allows.

For a request with a grammar, its drafts are fed to the grammar to find the tokens that each row may choose from. With
the default task's grammar 60 % of the rows allow one token, and 97 % at most 256, out of 49,152. The whole vocabulary
is computed only for rows that allow more, or whose log probabilities are needed. A logit does not depend on which
others are computed, so the chosen tokens are the same.

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

from serving.engines.paged.step import ScheduledRequest, StepClock
from serving.errors import GrammarError
from serving.kernels.base import MaskedProducts
from serving.kernels.upload import upload

Ids = NDArray[np.int32]
Row = NDArray[np.float32]

MAX_ALLOWED = 256  # with more tokens, computing the whole vocabulary in order of memory is faster


@dataclass(frozen=True, slots=True)
class RowLogits:
    """Logits of one row.

    Args:
        logits: [vocab], or [n] of `token_ids`.
        token_ids: [n], ascending: the tokens that the grammar allows. None: `logits` are of the whole vocabulary, and
            the grammar has not been applied.
    """

    logits: Row
    token_ids: Ids | None = None


class LogitsModel(Protocol):
    """The methods of a model that are used here; see `models.llama`."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden] → [rows, vocab] float32."""
        ...

    def compute_allowed_logits(
        self, hidden: Tensor, rows: Tensor, bitmasks: Tensor, max_columns: int
    ) -> MaskedProducts:
        """hidden: [any, hidden]; rows: [n] int32; bitmasks: [n, words] int32, with up to `max_columns` bits."""
        ...


class Head:
    """Computes the logits that `Sampler` needs.

    Args:
        model: computes logits of a whole row, or of some tokens in some rows.
        vocab_size: width of the logits.
        clock: measures the time of the grammars and of the head.
    """

    def __init__(self, model: LogitsModel, *, vocab_size: int, clock: StepClock | None = None) -> None:
        self._model = model
        self._clock = clock or StepClock()
        self._bitmasks = np.zeros((0, -(-vocab_size // 32)), dtype=np.int32)

    def logits(self, hidden: Tensor, rows: Ids, scheduled: Iterable[ScheduledRequest]) -> list[RowLogits]:
        """The logits of each row.

        hidden: [num_tokens, hidden]; rows: [n] of it, for each sampling request its last known token and its drafts.
        """
        bitmasks, unknown = self._allowed([item for item in scheduled if item.samples])
        many = np.flatnonzero(np.bitwise_count(bitmasks.view(np.uint32)).sum(axis=1, dtype=np.int64) > MAX_ALLOWED)
        self._clock.lap("grammar")
        # A GPU computes these while the others are prepared, and the step waits for it once.
        whole = sorted(unknown.union(many.tolist()))
        logits_of_whole = self._compute_whole(hidden, rows[whole]) if whole else None
        allowed = self._model.compute_allowed_logits(
            hidden, torch.from_numpy(rows), torch.from_numpy(bitmasks), MAX_ALLOWED
        )
        counts, token_ids, values = allowed.counts.tolist(), allowed.columns.numpy(), allowed.products.numpy()
        result = [
            RowLogits(logits[:count], ids[:count]) for count, ids, logits in zip(counts, token_ids, values, strict=True)
        ]
        if logits_of_whole is not None:
            for i, logits in zip(whole, logits_of_whole.cpu().numpy(), strict=True):
                result[i] = RowLogits(logits)
        self._clock.lap("head")
        return result

    def _compute_whole(self, hidden: Tensor, rows: Ids) -> Tensor:
        return self._model.compute_logits(hidden.index_select(0, upload(torch.from_numpy(rows), str(hidden.device))))

    def _allowed(self, sampling: Sequence[ScheduledRequest]) -> tuple[NDArray[np.int32], set[int]]:
        """A bitmask for each row, and the rows that need the whole vocabulary.

        Rows after a draft that the grammar refuses have an empty bitmask; the sampler never reaches them.
        """
        starts = [0]
        for item in sampling:
            starts.append(starts[-1] + 1 + len(item.draft_token_ids))
        bitmasks = self._clear_bitmasks(starts[-1])
        unknown = set[int]()
        for item, start, end in zip(sampling, starts, starts[1:], strict=False):
            grammar = item.request.grammar
            try:
                if grammar is None or item.request.sampling.logprobs is not None:
                    unknown.update(range(start, end))
                else:
                    grammar.fill_bitmasks(item.draft_token_ids, bitmasks[start:end])
            except GrammarError:  # the grammar has failed for good, and the sampler will get the same error
                unknown.update(range(start, end))
        return bitmasks, unknown

    def _clear_bitmasks(self, rows: int) -> NDArray[np.int32]:
        if len(self._bitmasks) < rows:
            self._bitmasks = np.zeros((rows, self._bitmasks.shape[1]), np.int32)
        bitmasks = self._bitmasks[:rows]
        bitmasks.fill(0)
        return bitmasks
