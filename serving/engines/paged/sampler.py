"""Choose tokens from logits, and verify drafts.

The model has computed a row of logits for the last known token and one for each draft. Each row in turn gives the token
that decoding without drafts would give there. If it equals the draft, the next row is valid too; otherwise the
remaining rows are discarded. So

- an *accepted* token is a draft that was also chosen, the *recovered* token is the one chosen instead of the first
  rejected draft, and the *bonus* token follows the last draft;
- the grammar consumes chosen tokens only, and never has to roll back a draft;
- with a temperature, a draft d is accepted with probability p(d) and otherwise replaced by a sample from p without d,
  renormalized. This is rejection sampling (Leviathan et al. 2023) for deterministic drafts, and exact. The random
  number depends only on the seed and the position in the output, so the same seed gives the same text whatever the
  drafts, the batch and the preemptions are.

The order of operations is vLLM's: penalties, `min_tokens` and the grammar, if the request has them; then, unless the
choice is greedy, temperature, min_p, top_k, top_p. Penalties of a row count the tokens chosen in the rows before it.

    output = Sampler(vocab_size=49152).sample(rows, scheduled_requests)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.drafting.drafter import Grammar
from serving.engines.paged.head import RowLogits
from serving.engines.paged.logits_processor import LogitsProcessor, token_logprob
from serving.engines.paged.request import Request
from serving.engines.paged.step import ScheduledRequest
from serving.errors import GrammarError, ServingError, WeightsError
from serving.types import SamplingParams, TokenLogprob

Row = NDArray[np.float32]  # [vocab]
_DEAD_END = "the grammar allows no token here, not even the end: it has a dead end; correct the grammar"
_MAX_ATTEMPTS: Final = 100  # at one position
_REFUSED = (
    f"the JSON schema: the {_MAX_ATTEMPTS} likeliest tokens here would complete a value that it does not allow; "
    "simplify its `not`, `oneOf` or conditions"
)
MIN_TEMPERATURE = 1e-30  # float32 can divide by it; sampling is greedy at much higher temperatures already


@dataclass(slots=True)
class RunnerOutput:
    """The result of a step: the new tokens of each scheduled request, none for a request in the middle of its prompt.

    `failures` has, by request id, the errors of requests that cannot continue. `logprobs` has, by request id, one entry
    for each new token of the requests that asked for them; `choice_logprobs` has those of `TokenPass` alike.
    """

    sampled_token_ids: list[list[int]]
    failures: dict[str, ServingError] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    choice_logprobs: dict[str, list[float]] = field(default_factory=dict)


class Sampler:
    """Chooses the next tokens of requests, greedily or by sampling, as their grammars allow."""

    def __init__(self, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bitmask = np.zeros(-(-vocab_size // 32), dtype=np.int32)

    def sample(self, rows: Sequence[RowLogits], scheduled: Iterable[ScheduledRequest]) -> RunnerOutput:
        """Choose tokens; `rows` has one row for each sampling request, and one more for each of its drafts."""
        output = RunnerOutput([])
        row = 0
        for item in scheduled:
            token_ids: list[int] = []
            if item.samples:
                end = row + 1 + len(item.draft_token_ids)
                request = item.request
                try:
                    chosen = self._verify(item, rows[row:end])
                    token_ids = [token_id for token_id, _ in chosen]
                    if request.sampling.choice_logprobs:
                        output.choice_logprobs[request.request_id] = [logprob for _, logprob in chosen]
                except (GrammarError, WeightsError) as error:
                    output.failures[request.request_id] = error
                if request.sampling.logprobs is not None:
                    output.logprobs[request.request_id] = [
                        token_logprob(rows[row + i].logits, token_id, request.sampling.logprobs)
                        for i, token_id in enumerate(token_ids)
                    ]
                row = end
            output.sampled_token_ids.append(token_ids)
        return output

    def _verify(self, item: ScheduledRequest, rows: Sequence[RowLogits]) -> list[tuple[int, float]]:
        """The tokens that the rows give, each with its `choice_logprobs`."""
        request, drafts = item.request, item.draft_token_ids
        processor = request.logits_processor
        chosen: list[tuple[int, float]] = []
        for i, row in enumerate(rows):
            if processor is not None:
                row = self._processed(row, processor, request.grammar)
            token_id, logprob = self._choose(request, request.num_output_tokens + i, row)
            if processor is not None:
                processor.accept(token_id)
            chosen.append((token_id, logprob))
            if i == len(drafts) or token_id != drafts[i]:
                break
            if request.grammar is not None and request.grammar.is_complete:
                break
        return chosen

    def _processed(self, row: RowLogits, processor: LogitsProcessor, grammar: Grammar | None) -> RowLogits:
        """The row after penalties. The grammar is applied first: `min_tokens` never forbids the only allowed token."""
        logits, token_ids = row.logits, row.token_ids
        if grammar is not None and token_ids is None:
            token_ids = np.flatnonzero(self._bits(grammar)).astype(np.int32)
            logits = logits[token_ids]
        if token_ids is not None and not token_ids.size:
            return RowLogits(logits, token_ids)  # a dead end
        changed = replace(row, logits=processor.process(logits, token_ids), token_ids=token_ids)
        if (compute_whole := row.compute_whole) is None:
            return changed
        return replace(changed, compute_whole=lambda: processor.process(compute_whole()))

    def _choose(self, request: Request, position: int, row: RowLogits) -> tuple[int, float]:
        """Choose the token of one row and feed it to the grammar; `position` is its index in the output.

        The log probability that comes with it is 0 where nobody asked.

        A grammar may refuse a token that its mask allows, because it completes a value that the schema does not allow:
        then another one is chosen, with another random number.
        """
        grammar, logits, token_ids, others = request.grammar, row.logits, row.token_ids, row.others
        measures = request.sampling.choice_logprobs
        if token_ids is None and request.sampling.temperature == 0.0 and not (measures and grammar is not None):
            token_id = int(logits.argmax())  # the lowest id among equals; 10 times as fast as torch's
            # If the grammar allows the best of all tokens, that is the best of the allowed ones.
            if grammar is None or grammar.accept([token_id]):
                return token_id, token_logprob(logits, token_id, 0).logprob if measures else 0.0
        if token_ids is None and grammar is not None:
            bits = self._bits(grammar)
            token_ids = np.flatnonzero(bits).astype(np.int32)
            logits = logits[token_ids]
        for attempt in range(_MAX_ATTEMPTS):
            if token_ids is not None and not token_ids.size:
                raise GrammarError(_DEAD_END)
            index = _pick(request, position, logits, attempt)
            token_id = index if token_ids is None else int(token_ids[index])
            if grammar is None or grammar.accept([token_id]):
                if not measures:
                    return token_id, 0.0
                all_logits = logits if others == -np.inf else np.append(logits, np.float32(others))
                return token_id, token_logprob(all_logits, index, 0).logprob if all_logits.size > 1 else 0.0
            assert token_ids is not None, "the tokens that a grammar allows are known"
            if row.compute_whole is not None and attempt == 0:  # the next largest may be one that was not computed
                token_ids = np.flatnonzero(self._bits(grammar)).astype(np.int32)
                logits, others = row.compute_whole()[token_ids], -np.inf
            rest = token_ids != token_id
            logits, token_ids = logits[rest], token_ids[rest]
        raise GrammarError(_REFUSED)

    def _bits(self, grammar: Grammar) -> NDArray[np.uint8]:
        grammar.fill_bitmask(self._bitmask)
        return np.unpackbits(self._bitmask.view(np.uint8), bitorder="little")[: self._vocab_size]


def _pick(request: Request, position: int, logits: Row, attempt: int) -> int:
    """The index of the chosen token among these logits; `attempt` counts the tokens refused at this position."""
    if request.sampling.temperature == 0.0:
        return int(logits.argmax())
    return draw(target_weights(logits, request.sampling), request.seed, position, attempt)


def target_weights(logits: Row, sampling: SamplingParams) -> Row:
    """Weights proportional to the probabilities after temperature, min_p, top_k and top_p, in this order.

    Among equals top_k and top_p keep lower ids. Weights are float32 like the logits; sums are taken in float64.
    """
    with np.errstate(over="ignore"):  # a tiny temperature correctly turns all but the best into -inf
        weights: Row = np.exp((logits - logits.max()) / np.float32(max(sampling.temperature, MIN_TEMPERATURE)))
    if sampling.min_p > 0.0:  # the largest weight is 1
        weights = np.where(weights < np.float32(sampling.min_p), np.float32(0.0), weights)
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


def draw(weights: Row, seed: int, position: int, attempt: int = 0) -> int:
    """Sample an index of `weights` with the random number of (seed, position, attempt).

    Raises:
        WeightsError: the weights are not numbers, as when an adapter's training has diverged.
    """
    uniform = np.random.Generator(np.random.Philox(key=seed, counter=[position, attempt, 0, 0])).random()
    mass = np.cumsum(weights, dtype=np.float64)
    if not np.isfinite(mass[-1]):
        raise WeightsError("the model's logits are not numbers; its weights or the request's adapter are damaged")
    # The random number is below 1, so that rounding never picks a token of weight 0 at the end.
    return int(np.searchsorted(mass, uniform * mass[-1], side="right"))
