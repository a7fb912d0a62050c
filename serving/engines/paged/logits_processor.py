"""Apply the penalties and `min_tokens` of a request to its logits, and compute log probabilities.

processor = make_processor(request, end_token_ids=(2,))  # None if the request has neither
logits = processor.process(logits)
processor.accept(token_id)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from serving.types import GenerationRequest, SamplingParams, TokenLogprob

Ids = NDArray[np.int32]
Row = NDArray[np.float32]


def make_processor(request: GenerationRequest, end_token_ids: Collection[int]) -> LogitsProcessor | None:
    """The processor of a request; None if its logits are not changed."""
    sampling = request.sampling
    changed = (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.min_tokens > 0
    )
    return LogitsProcessor(sampling, request.prompt_token_ids, end_token_ids) if changed else None


class LogitsProcessor:
    """Keeps track of the tokens of a request, and changes the logits of the next one accordingly.

    The change of a logit depends only on its own token, so it is the same whether a row has the whole vocabulary or
    only the tokens that a grammar allows.

    Args:
        sampling: parameters of the request.
        prompt_token_ids: count for the repetition penalty.
        end_token_ids: forbidden before `min_tokens` tokens.
    """

    def __init__(
        self, sampling: SamplingParams, prompt_token_ids: Collection[int], end_token_ids: Collection[int]
    ) -> None:
        self._repetition = np.float32(sampling.repetition_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._min_tokens = sampling.min_tokens
        self._end = np.array(sorted(end_token_ids), np.int32)
        self._repeated: dict[int, None] = dict.fromkeys(prompt_token_ids)  # an ordered set: prompt and output
        self._output: Counter[int] = Counter()
        self._num_output_tokens = 0

    @property
    def keeps_order(self) -> bool:
        """Whether it forbids end tokens and changes nothing else."""
        return self._repetition == 1.0 and not self._presence and not self._frequency

    def forbidden(self, ahead: int) -> list[int]:
        """The tokens that may not come after `ahead` more tokens, where others may."""
        return self._end.tolist() if self._num_output_tokens + ahead < self._min_tokens else []

    def accept(self, token_id: int) -> None:
        """Append a token to the output."""
        self._repeated[token_id] = None
        self._output[token_id] += 1
        self._num_output_tokens += 1

    def process(self, logits: Row, token_ids: Ids | None = None) -> Row:
        """A copy of the logits with the penalties applied.

        Args:
            logits: [vocab], or [n] of `token_ids`; those of tokens that are not allowed are -inf.
            token_ids: [n], ascending; None for the whole vocabulary.
        """
        logits = logits.copy()
        if self._repetition != 1.0:
            indices, _ = _find(np.fromiter(self._repeated, np.int32, len(self._repeated)), token_ids)
            values = logits[indices]
            logits[indices] = np.where(values > 0, values / self._repetition, values * self._repetition)
        if self._output and (self._presence or self._frequency):
            indices, is_present = _find(np.fromiter(self._output, np.int32, len(self._output)), token_ids)
            counts = np.fromiter(self._output.values(), np.float32, len(self._output))[is_present]
            logits[indices] -= self._frequency * counts + self._presence
        if self.forbidden(0):
            self._forbid_end(logits, token_ids)
        return logits

    def _forbid_end(self, logits: Row, token_ids: Ids | None) -> None:
        """Forbid the end tokens, unless no other token is allowed."""
        indices, _ = _find(self._end, token_ids)
        original = logits[indices]
        logits[indices] = -np.inf
        if logits.max() == -np.inf:
            logits[indices] = original


def _find(tokens: Ids, token_ids: Ids | None) -> tuple[Ids | NDArray[np.intp], slice | NDArray[np.bool_]]:
    """The indices in `token_ids` of those `tokens` that it has, and a mask of these."""
    if token_ids is None:
        return tokens, slice(None)
    indices = np.searchsorted(token_ids, tokens)
    is_present = token_ids[np.minimum(indices, len(token_ids) - 1)] == tokens
    return indices[is_present], is_present


def token_logprob(logits: Row, token_id: int, count: int) -> TokenLogprob:
    """Log probabilities of a token and of the `count` likeliest tokens; lower ids come first among equals.

    logits: [vocab], unchanged from the model.
    """
    highest = logits.max()
    total = highest + np.log(np.exp(logits - highest).sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        count = min(count, logits.size)
        candidates = np.flatnonzero(logits >= np.partition(logits, -count)[-count])
        best = candidates[np.lexsort((candidates, -logits[candidates]))][:count]
        top = tuple(zip(best.tolist(), (logits[best] - total).tolist(), strict=True))
    return TokenLogprob(token_id, float(logits[token_id] - total), top)
