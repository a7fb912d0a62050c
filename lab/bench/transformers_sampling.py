"""Choose the next token with transformers' logits processors, as the reference of the conformance suite."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from llguidance import LLMatcher
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from serving.types import GenerationRequest, SamplingParams, TokenLogprob


class Choose(LogitsProcessor):
    """A processor that applies grammar and sampling itself, and leaves `generate` one token to choose."""

    def __init__(self, request: GenerationRequest, matcher: LLMatcher | None, eos_token_ids: tuple[int, ...]) -> None:
        self.num_passes = 0
        self.logprobs: tuple[TokenLogprob, ...] = ()  # of the last chosen token
        self._sampling = sampling = request.sampling
        self._matcher = matcher
        self._num_prompt_tokens = len(request.prompt_token_ids)
        self._eos = list(eos_token_ids)
        self._repetition = RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))
        self._warpers = _warpers(sampling)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows no further token."""
        return self._matcher is not None and self._matcher.is_stopped()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores to choose the next token from; input_ids: [1, tokens]; scores and result: [1, vocabulary]."""
        self.num_passes += 1
        output = input_ids[0, self._num_prompt_tokens :]
        logits = self._penalized(input_ids, scores.clone(), output)
        if self._matcher is not None:
            bitmask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bitmask, bitorder="little")[: logits.shape[1]].astype(bool)
            logits[0, ~torch.from_numpy(allowed)] = -torch.inf
        if len(output) < self._sampling.min_tokens:
            without_end = logits.clone()
            without_end[0, self._eos] = -torch.inf
            logits = without_end if without_end.isfinite().any() else logits
        token_id = self._sample(input_ids, logits) if self._sampling.temperature > 0 else int(logits.argmax())
        if self._matcher is not None:
            self._matcher.consume_token(token_id)
        if self._sampling.logprobs is not None:
            self.logprobs = (_logprob(scores[0], token_id, self._sampling.logprobs),)
        return torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor([token_id]), 0.0)

    def _penalized(self, input_ids: torch.Tensor, logits: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        logits = self._repetition(input_ids, logits)
        counts = output.bincount(minlength=logits.shape[1])
        logits -= self._sampling.frequency_penalty * counts + self._sampling.presence_penalty * (counts > 0)
        return logits

    def _sample(self, input_ids: torch.Tensor, logits: torch.Tensor) -> int:
        for warper in self._warpers:
            logits = warper(input_ids, logits)
        return int(torch.multinomial(logits.softmax(1), 1, generator=self._generator))


def _warpers(sampling: SamplingParams) -> list[LogitsProcessor]:
    warpers: list[LogitsProcessor] = []
    if sampling.temperature > 0:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return warpers


def _logprob(logits: torch.Tensor, token_id: int, count: int) -> TokenLogprob:
    logprobs = logits.log_softmax(0)
    values, ids = logprobs.topk(count)
    return TokenLogprob(token_id, float(logprobs[token_id]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
