"""Penalties, min_tokens and log probabilities against transformers, torch and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from serving.engines.paged.logits_processor import LogitsProcessor, make_processor, token_logprob
from serving.engines.paged.sampler import target_weights
from serving.types import GenerationRequest, SamplingParams

VOCAB = 40
END = (0, 7)

logits_ = st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=VOCAB, max_size=VOCAB)  # with ties
tokens_ = st.lists(st.integers(0, VOCAB - 1), max_size=30)
penalties = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3, 10.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.3, 0.0, 2.0]),
    min_tokens=st.sampled_from([0, 3, 20]),
)


def processed(sampling: SamplingParams, prompt: list[int], output: list[int], logits: np.ndarray, ids=None):
    processor = LogitsProcessor(sampling, prompt, END)
    for token_id in output:
        processor.accept(token_id)
    return processor.process(logits, ids)


def by_definition(sampling: SamplingParams, prompt: list[int], output: list[int], logits: np.ndarray) -> np.ndarray:
    """Computed token by token in float64."""
    result = logits.astype(float)
    for token in range(len(logits)):
        if token in prompt or token in output:
            factor = sampling.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        result[token] -= sampling.frequency_penalty * output.count(token)
        result[token] -= sampling.presence_penalty * (token in output)
        if token in END and len(output) < sampling.min_tokens:
            result[token] = -np.inf
    return result


@settings(deadline=None)
@given(penalties, tokens_, tokens_, logits_)
def test_a_row_is_changed_as_defined_and_the_original_is_not(sampling, prompt, output, values):
    logits = np.array(values, np.float32)
    result = processed(sampling, prompt, output, logits)
    np.testing.assert_allclose(result, by_definition(sampling, prompt, output, logits), rtol=1e-5, atol=1e-5)
    assert result.dtype == np.float32
    assert logits.tolist() == values


@settings(deadline=None)
@given(penalties, tokens_, tokens_, logits_, st.sets(st.integers(0, VOCAB - 1), min_size=1))
def test_logits_of_selected_tokens_equal_the_whole_row_s_bit_for_bit(sampling, prompt, output, values, some):
    logits, ids = np.array(values, np.float32), np.array(sorted(some), np.int32)
    part = processed(sampling, prompt, output, logits[ids], ids)
    masked = np.full(VOCAB, -np.inf, np.float32)
    masked[ids] = logits[ids]
    np.testing.assert_array_equal(part, processed(sampling, prompt, output, masked)[ids])
    assert part.max() > -np.inf, "some token must be allowed"


@settings(deadline=None)
@given(st.sampled_from([0.01, 0.8, 1.7, 10.0]), tokens_, tokens_, logits_)
def test_the_repetition_penalty_is_that_of_transformers(factor, prompt, output, values):
    logits, history = np.array(values, np.float32), [*prompt, *output, 3]
    theirs = RepetitionPenaltyLogitsProcessor(factor)(torch.tensor([history]), torch.tensor([values]))
    ours = processed(SamplingParams(repetition_penalty=factor), prompt, [*output, 3], logits)
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


def test_the_end_token_may_come_early_if_nothing_else_is_allowed():
    sampling, ids = SamplingParams(min_tokens=2), np.array([0, 7], np.int32)
    assert processed(sampling, [], [5], np.array([1.0, 2.0], np.float32), ids).tolist() == [1.0, 2.0]
    ids = np.array([0, 7, 9], np.int32)
    row = np.array([1.0, 2.0, -50.0], np.float32)
    assert processed(sampling, [], [5], row, ids).tolist() == [-np.inf, -np.inf, -50.0]
    assert processed(sampling, [], [5, 5], row, ids).tolist() == row.tolist()


def test_a_request_without_penalties_has_no_processor():
    neutral = SamplingParams(temperature=0.7, top_k=3, min_p=0.1, logprobs=3, seed=1, stop=("x",))
    assert make_processor(GenerationRequest("a", (1,), neutral), END) is None
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"):
        assert make_processor(GenerationRequest("a", (1,), SamplingParams(**{name: 2})), END) is not None, name


@settings(deadline=None)
@given(logits_, st.integers(0, VOCAB - 1), st.sampled_from([0, 1, 5, 20, VOCAB + 3]))
def test_logprobs_are_torchs_log_softmax_likeliest_first(values, token_id, count):
    found = token_logprob(np.array(values, np.float32), token_id, count)
    expected = torch.tensor(values).double().log_softmax(0).tolist()
    assert (found.token_id, found.logprob) == (token_id, pytest.approx(expected[token_id], abs=1e-5))
    best = sorted(range(VOCAB), key=lambda i: (-values[i], i))[:count]
    assert [i for i, _ in found.top] == best
    assert [p for _, p in found.top] == pytest.approx([expected[i] for i in best], abs=1e-5)


def test_logprobs_of_impossible_tokens_are_no_error():
    found = token_logprob(np.array([90.0, -np.inf, -90.0], np.float32), 1, 3)
    assert found.logprob == -np.inf
    assert found.top == ((0, 0.0), (2, -180.0), (1, -np.inf))


@settings(deadline=None)
@given(
    st.lists(st.integers(-800, 800).map(lambda n: n / 97), min_size=VOCAB, max_size=VOCAB, unique=True),
    st.sampled_from([0.3, 1.0, 1.9]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([None, 1, 4, 17]),
    st.floats(0.05, 1.0),
)
def test_the_target_distribution_is_that_of_transformers_warpers(values, temperature, min_p, top_k, top_p):
    """Without ties, all of which transformers keeps, and without rounding at the limit of top_p."""
    sampling = SamplingParams(temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    ids, scores = torch.tensor([[0]]), torch.tensor([values], dtype=torch.float64) / temperature
    warpers = [MinPLogitsWarper(min_p)] if min_p else []
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    for warper in warpers:
        scores = warper(ids, scores)
    mass = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
    if (mass - top_p).abs().min() < 1e-5:
        return
    scores = TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
    weights = target_weights(np.array(values, np.float32), sampling).astype(float)
    np.testing.assert_allclose(weights / weights.sum(), scores.softmax(-1)[0].numpy(), atol=1e-5)
