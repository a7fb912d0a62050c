"""Compute logits only for the tokens that a request's grammar allows.

For a request with a grammar, its drafts are fed to the grammar to find the tokens that each row may choose from. With
the default task's grammar 60 % of the rows allow one token, and 97 % at most 256, out of 49,152. The whole vocabulary
is computed only for rows that allow more, or whose log probabilities are needed. A logit does not depend on which
others are computed, so the chosen tokens are the same.

Rows that only need the largest of more logits are screened first: a small copy of the head leaves the few tokens that
may have it.

    rows = Head(model, vocab_size=49152).logits(hidden, logit_rows, scheduled)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.engines.paged.step import ScheduledRequest, StepClock
from serving.errors import GrammarError
from serving.kernels.upload import upload
from serving.models.llama import LlamaForCausalLM

Ids = NDArray[np.int32]
Row = NDArray[np.float32]

MAX_ALLOWED = 256  # with more tokens, computing the whole vocabulary in order of memory is faster
_MAX_SCREENED = 4096  # the same in a step with screened rows, whose screen would have been in vain


@dataclass(frozen=True, slots=True)
class RowLogits:
    """Logits of one row.

    Args:
        logits: [vocab], or [n] of `token_ids`.
        token_ids: [n], ascending: the tokens that the grammar allows, or those of them that may have the largest
            logit. None: `logits` are of the whole vocabulary, and the grammar has not been applied.
        compute_whole: computes the logits of the whole vocabulary; None unless `token_ids` are only those that may
            have the largest logit.
        others: of the allowed tokens that are not in `token_ids`, the logarithm of the summed exponentials of the
            logits, within about 0.02.
    """

    logits: Row
    token_ids: Ids | None = None
    compute_whole: Callable[[], Row] | None = None
    others: float = -np.inf


class Head:
    """Computes the logits that `Sampler` needs."""

    def __init__(self, model: LlamaForCausalLM, *, vocab_size: int, clock: StepClock | None = None) -> None:
        self._model = model
        self._clock = clock or StepClock()
        self._bitmasks = np.zeros((0, -(-vocab_size // 32)), dtype=np.int32)
        all_tokens = np.arange(32 * self._bitmasks.shape[1]) < vocab_size
        self._all_tokens = np.packbits(all_tokens, bitorder="little").view(np.int32)

    def logits(self, hidden: Tensor, rows: Ids, scheduled: Iterable[ScheduledRequest]) -> list[RowLogits]:
        """The logits of each row.

        hidden: [num_tokens, hidden]; rows: [n] of it, for each sampling request its last known token and its drafts.
        """
        sampling = [item for item in scheduled if item.samples]
        bitmasks, unknown = self._allowed(sampling)
        self._clock.lap("grammar")
        screened = self._narrow(hidden, rows, sampling, bitmasks, unknown)
        max_columns = _MAX_SCREENED if screened else MAX_ALLOWED
        many = np.flatnonzero(_count_bits(bitmasks) > max_columns)
        # A GPU computes these while the others are prepared, and the step waits for it once.
        whole = sorted(unknown.union(many.tolist()))
        logits_of_whole = self._compute_whole(hidden, rows[whole]) if whole else None
        allowed = self._model.compute_allowed_logits(
            hidden, torch.from_numpy(rows), torch.from_numpy(bitmasks), max_columns
        )
        counts, token_ids, values = allowed.counts.tolist(), allowed.columns.numpy(), allowed.products.numpy()
        result = [
            RowLogits(logits[:count], ids[:count]) for count, ids, logits in zip(counts, token_ids, values, strict=True)
        ]
        for i, (largest, others) in screened.items():
            logits = result[i].logits if counts[i] > 1 else largest
            result[i] = RowLogits(
                logits, result[i].token_ids, partial(self._compute_one, hidden, rows[i : i + 1]), others
            )
        if logits_of_whole is not None:
            for i, logits in zip(whole, logits_of_whole.cpu().numpy(), strict=True):
                result[i] = RowLogits(logits)
        self._clock.lap("head")
        return result

    def _narrow(
        self,
        hidden: Tensor,
        rows: Ids,
        sampling: Sequence[ScheduledRequest],
        bitmasks: NDArray[np.int32],
        unknown: set[int],
    ) -> dict[int, tuple[Row, float]]:
        """Clear bits of tokens that cannot be chosen, where many are set and the largest logit is chosen.

        Returns:
            These rows, which are no longer `unknown`: each with the logit [1] that it has if only one bit is left, and
            with `RowLogits.others`.
        """
        screen = self._model.screen
        if screen is None:
            return {}
        greedy = list[int]()
        start = 0
        for item in sampling:
            end = start + 1 + len(item.draft_token_ids)
            if item.request.takes_largest:
                greedy.extend(range(start, end))
                if item.request.grammar is None:
                    bitmasks[start:end] = self._all_tokens
                    unknown.difference_update(range(start, end))
            start = end
        counts = _count_bits(bitmasks)
        screened = [row for row in greedy if counts[row] > MAX_ALLOWED]
        if not screened:
            return {}
        _forbid_ends(sampling, bitmasks, counts)
        narrowed = torch.from_numpy(bitmasks[screened])
        sums = screen.narrow(hidden, torch.from_numpy(rows[screened]), narrowed).numpy()
        bitmasks[screened] = narrowed.numpy()
        return {
            row: (largest, float(others))
            for row, largest, others in zip(screened, sums[:, :1], sums[:, 1], strict=True)
        }

    def _compute_one(self, hidden: Tensor, row: Ids) -> Row:
        logits: Row = self._compute_whole(hidden, row)[0].cpu().numpy()
        return logits

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


def _forbid_ends(sampling: Iterable[ScheduledRequest], bitmasks: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    """Clear the bits of end tokens before `min_tokens`, in screened rows: these have other tokens too."""
    row = 0
    for item in sampling:
        processor = item.request.logits_processor
        for ahead in range(1 + len(item.draft_token_ids)):
            if processor is not None and item.request.takes_largest and counts[row] > MAX_ALLOWED:
                for token in processor.forbidden(ahead):
                    bitmasks.view(np.uint32)[row, token // 32] &= ~np.uint32(1 << token % 32)
            row += 1


def _count_bits(bitmasks: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of bits that are set in each row."""
    count: NDArray[np.int64] = np.bitwise_count(bitmasks.view(np.uint32)).sum(axis=1, dtype=np.int64)
    return count
