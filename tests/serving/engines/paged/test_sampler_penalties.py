"""Penalties and min_tokens hold for every row of a step, and drafts change nothing about them."""

import numpy as np
import pytest
import torch

from serving.engines.paged.logits_processor import make_processor
from serving.engines.paged.sampler import Sampler
from serving.errors import GrammarError
from serving.types import GenerationRequest, SamplingParams
from tests.serving.engines.paged.sampler_items import (
    END,
    VOCAB,
    WordGrammar,
    chi_square,
    distribution,
    favouring,
    make_item,
    rows_of,
    sample,
)


def test_a_draft_counts_for_the_penalties_of_later_rows():
    """In every row 7 is best; once 7 was chosen, 5 is better, and so on."""
    logits = torch.full((4, VOCAB), -9.0)
    logits[:, 7], logits[:, 5] = 1.0, 0.5
    sampling = SamplingParams(frequency_penalty=0.8)
    assert sample(logits, make_item(sampling, [7, 5, 7])) == [[7, 5, 7, 5]]
    assert sample(logits, make_item(sampling, [7, 7, 7])) == [[7, 5]]


def test_min_tokens_delays_the_end_token_also_after_drafts():
    logits = torch.zeros(4, VOCAB)
    logits[:, 2], logits[:, 7] = 1.0, 0.5
    assert sample(logits, make_item(SamplingParams(min_tokens=2), [7, 7, 7])) == [[7, 7, 2]]
    grammar = WordGrammar([{2, 7}, {2}, {2, 7}])
    assert sample(logits[:2], make_item(SamplingParams(min_tokens=9), [7], grammar)) == [[7, 2]]


def test_a_grammar_with_a_dead_end_fails_with_penalties_too():
    output = Sampler(vocab_size=VOCAB).sample(
        rows_of(favouring(1)), [make_item(SamplingParams(min_tokens=1), [], WordGrammar([set()]))]
    )
    assert isinstance(output.failures["a"], GrammarError)


@pytest.mark.parametrize("draft", [None, 0, 5])
def test_speculation_keeps_the_distribution_under_penalties(draft):
    """Of the first two tokens; the second depends on the first only by its penalties."""
    sampling = SamplingParams(temperature=0.9, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.8)
    logits = torch.linspace(1.6, -0.8, 6).repeat(2, 1)
    expected = np.zeros((6, 6))
    for first in range(6):
        probs = []
        for output in ([], [first]):
            processor = make_processor(GenerationRequest("a", (1, 2, 3), sampling), END)
            for token in output:
                processor.accept(token)
            probs.append(distribution(processor.process(logits[0].numpy()), sampling))
        expected[first] = probs[0][first] * probs[1]
    counts, sampler = np.zeros((6, 6)), Sampler(vocab_size=6)
    for seed in range(4_000):
        item = make_item(sampling, [] if draft is None else [draft], seed=seed)
        while item.request.num_output_tokens < 2:
            rows = rows_of(logits[: 1 + len(item.draft_token_ids)])
            item.request.token_ids += sampler.sample(rows, [item]).sampled_token_ids[0]
            item.num_tokens, item.draft_token_ids = item.request.num_tokens, []
        counts[tuple(item.request.output_token_ids)] += 1
    assert counts[expected == 0].sum() == 0
    degrees = int((expected > 0).sum()) - 1
    assert chi_square(counts, expected) < degrees + 3.1 * np.sqrt(2 * degrees) + 5  # beyond p = 0.001
