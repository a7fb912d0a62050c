"""Shared by tests of the sampler: rows of logits, a grammar of token sets, and the expected distribution."""

import numpy as np
import torch

from serving.engines.paged.head import RowLogits
from serving.engines.paged.logits_processor import make_processor
from serving.engines.paged.request import Request
from serving.engines.paged.sampler import Sampler, target_weights
from serving.engines.paged.step import ScheduledRequest
from serving.types import GenerationRequest, SamplingParams

END = (0, 2)
VOCAB = 70  # not a multiple of 32: the last word of a bitmask is partly unused


class WordGrammar:
    """Accepts one sequence of sets of tokens; counts the tokens that it consumed."""

    def __init__(self, allowed: list[set[int]]) -> None:
        self.allowed = allowed
        self.consumed: list[int] = []

    @property
    def is_complete(self) -> bool:
        return len(self.consumed) == len(self.allowed)

    def accept(self, token_ids: list[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self.is_complete or token_id not in self.allowed[len(self.consumed)]:
                return count
            self.consumed.append(token_id)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        self.consumed = self.consumed[: len(self.consumed) - num_tokens]

    def forced_tokens(self) -> list[int]:
        return []

    def fill_bitmask(self, bitmask: np.ndarray) -> None:
        bits = np.zeros(bitmask.size * 32, np.uint8)
        bits[list(self.allowed[len(self.consumed)])] = 1
        bitmask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def fill_bitmasks(self, token_ids: list[int], bitmasks: np.ndarray) -> None:
        accepted = 0
        for row in bitmasks:
            self.fill_bitmask(row)
            if accepted == len(token_ids) or not self.accept([token_ids[accepted]]):
                break
            accepted += 1
            if self.is_complete:
                break
        self.rollback(accepted)


def make_item(sampling: SamplingParams, drafts: list[int], grammar=None, seed: int = 0) -> ScheduledRequest:
    source = GenerationRequest("a", (1, 2, 3), sampling)
    request = Request(source, seed=seed, grammar=grammar, logits_processor=make_processor(source, END))
    return ScheduledRequest(request, start=0, num_tokens=3, draft_token_ids=drafts)


def rows_of(logits: torch.Tensor) -> list[RowLogits]:
    return [RowLogits(row) for row in logits.numpy()]


def sample(logits: torch.Tensor, *items: ScheduledRequest) -> list[list[int]]:
    output = Sampler(vocab_size=VOCAB).sample(rows_of(logits), items)
    assert not output.failures
    return output.sampled_token_ids


def distribution(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    weights = target_weights(logits, sampling).astype(float)
    return weights / weights.sum()


def favouring(*token_ids: int) -> torch.Tensor:
    logits = torch.rand(len(token_ids), VOCAB)
    logits[range(len(token_ids)), list(token_ids)] = 5.0
    return logits


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    return float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())
