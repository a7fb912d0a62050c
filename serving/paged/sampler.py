"""Logits to tokens, drafts verified on the way.

Owns: greedy choice, sampling, and how both obey a grammar. Knows nothing of the model or of blocks.

The model has computed a row of logits for the last known token and one for each draft. Going down the
rows, each gives the token that plain decoding would have given there; if that is the draft the next row
is valid too, otherwise the rest is thrown away. Drafts are not weighed: they are only compared with. So

- an *accepted* token is a draft that was chosen anyway, the *recovered* token is what was chosen
  instead of the first wrong draft, and the *bonus* token follows the last draft;
- the grammar consumes chosen tokens only, and never has to forget a draft;
- at a temperature, a draft d is accepted with probability p(d) and otherwise replaced by a sample from
  p without d, renormalised: rejection sampling, exact for drafts that are no samples themselves.
  Moreover the sample is drawn from (seed, place in the output) alone, so that the same seed gives the
  same text whatever the drafts, the batch and the preemptions were.

    output = Sampler(vocab_size=49152).sample(rows, scheduled_requests)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving.errors import GrammarError, ServingError
from serving.paged.head import RowLogits
from serving.paged.request import Grammar, Request
from serving.paged.scheduler import ScheduledRequest
from serving.types import SamplingParams

Row = NDArray[np.float32]  # [vocab]
_DEAD_END = "the grammar allows no token here, not even the end; it has a dead end"
MIN_TEMPERATURE = 1e-30  # what float32 can still divide by; greedy long before


@dataclass(slots=True)
class RunnerOutput:
    """What a step yields: for each scheduled request its new tokens, none for part of a prompt.

    A request in `failures` (by its id) cannot go on, through no fault of the others.
    """

    sampled_token_ids: list[list[int]]
    failures: dict[str, ServingError] = field(default_factory=dict)


class Sampler:
    """Chooses tokens.

    Args:
        vocab_size: width of the logits.
    """

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)

    def sample(self, rows: Sequence[RowLogits], scheduled: Iterable[ScheduledRequest]) -> RunnerOutput:
        """rows: one a sampling request, and one more for each of its drafts."""
        output = RunnerOutput([])
        row = 0
        for item in scheduled:
            token_ids: list[int] = []
            if item.samples:
                end = row + 1 + len(item.draft_token_ids)
                try:
                    token_ids = self._verify(item, rows[row:end])
                except GrammarError as error:
                    output.failures[item.request.request_id] = error
                row = end
            output.sampled_token_ids.append(token_ids)
        return output

    def _verify(self, item: ScheduledRequest, rows: Sequence[RowLogits]) -> list[int]:
        request, drafts = item.request, item.draft_token_ids
        token_ids: list[int] = []
        for i, row in enumerate(rows):
            token_id = self._choose(request, request.num_output_tokens + i, row)
            token_ids.append(token_id)
            if i == len(drafts) or token_id != drafts[i]:
                break
            if request.grammar is not None and request.grammar.is_complete:
                break
        return token_ids

    def _choose(self, request: Request, position: int, row: RowLogits) -> int:
        """The token of one row, consumed by the grammar. `position` is its place in the output."""
        grammar, logits = request.grammar, row.logits
        if row.token_ids is not None:
            if not row.token_ids.size:
                raise GrammarError(_DEAD_END)
            token_id = int(row.token_ids[_pick(request, position, logits)])
        elif request.sampling.temperature == 0.0:
            token_id = int(logits.argmax())  # the first of equals; 10 times as fast as torch's
            # Where the grammar accepts the best of all tokens, that is the best of those it allows.
            if grammar is None or grammar.accept([token_id]):
                return token_id
            token_id = int(self._masked(logits, grammar).argmax())
        else:
            token_id = _pick(request, position, logits if grammar is None else self._masked(logits, grammar))
        if grammar is not None:
            accepted = grammar.accept([token_id])
            assert accepted == 1, "the grammar refuses a token that its mask allows"
        return token_id

    def _masked(self, row: Row, grammar: Grammar) -> Row:
        grammar.fill_bitmask(self._bitmask)
        bits = np.unpackbits(self._bitmask.view(np.uint8), bitorder="little")[: self._vocab_size]
        if not bits.any():
            raise GrammarError(_DEAD_END)
        masked: Row = np.where(bits.view(np.bool_), row, np.float32(-np.inf))
        return masked


def _pick(request: Request, position: int, logits: Row) -> int:
    """The place of the chosen token among these logits."""
    if request.sampling.temperature == 0.0:
        return int(logits.argmax())
    return draw(target_weights(logits, request.sampling), request.seed, position)


def target_weights(logits: Row, sampling: SamplingParams) -> Row:
    """Proportional to the probabilities after temperature, then top_k, then top_p.

    Among equals lower ids are kept. float32, as the logits are; sums are taken in float64.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        weights: Row = np.exp(
            (logits - logits.max()) / np.float32(max(sampling.temperature, MIN_TEMPERATURE))
        )
    if sampling.top_k is not None and sampling.top_k < weights.size:
        weights = _keep_largest(weights, sampling.top_k)
    if sampling.top_p < 1.0:
        mass = np.cumsum(np.sort(weights)[::-1], dtype=np.float64)
        enough = int(np.searchsorted(mass, sampling.top_p * mass[-1]))
        weights = _keep_largest(weights, enough + 1)
    return weights


def _keep_largest(weights: Row, count: int) -> Row:
    if count >= weights.size:
        return weights
    threshold = np.partition(weights, -count)[-count]
    keep = weights > threshold
    keep[np.flatnonzero(weights == threshold)[: count - int(keep.sum())]] = True
    kept: Row = np.where(keep, weights, np.float32(0.0))
    return kept


def draw(weights: Row, seed: int, position: int) -> int:
    """The token of `weights` that the random number belonging to (seed, position) falls on."""
    uniform = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
    mass = np.cumsum(weights, dtype=np.float64)
    # Below the whole mass, so that rounding never picks a token of weight 0 at the end.
    return int(np.searchsorted(mass, uniform * mass[-1], side="right"))
