"""The draft model in C++ and in numpy gives the same results as the torch module that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.train.draft_examples import batch_tensors
from pipeline.train.draft_network import DraftNetwork
from serving.drafting.draft_model import create_draft_kernel
from serving.kernels.draft_base import CACHE_BLOCK, MAX_GENERATED, NUM_TOP, DraftKernel
from serving.kernels.draft_cpp import CppDraft
from serving.kernels.draft_numpy import NumpyDraft
from serving.kernels.library import CpuLibrary
from serving.weights.draft_weights import MAX_TOKENS, DraftWeights
from tests.draft_models import VOCAB, load_weights, write_draft_model
from tests.serving.kernels.builds import MARKED, library_of, needs_compiler

CANDIDATES = np.arange(10, 90, dtype=np.int32)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 60).tolist()
KINDS = ["numpy", *MARKED]


def make_kernel(folder: Path, kind: str) -> DraftKernel:
    return kernel_of(load_weights(folder, write_draft_model(folder)[1]), kind)


def kernel_of(weights: DraftWeights, kind: str) -> DraftKernel:
    if kind == "numpy":
        return NumpyDraft(weights)
    return CppDraft(weights, library_of(kind))


def tolerance(kind: str) -> float | None:
    """Relative error of probabilities against the module's; None where weights and inputs are rounded to 8 bits."""
    if kind == "numpy":
        return 2e-3
    return None if CpuLibrary(library_of(kind), 1).has_tiles else 1e-2  # keys and values are rounded


def ask(kernel: DraftKernel, *pieces: tuple[int, list[int]], cache=None, bidirectional: int = 0):
    """Run pieces (position, tokens), the first `bidirectional` of them bidirectionally; returns the last top tokens."""
    cache = kernel.new_cache() if cache is None else cache
    for i, (start, ids) in enumerate(pieces):
        tokens, probabilities = kernel.run(cache, start, ids, CANDIDATES, bidirectional=i < bidirectional)
    return tokens, np.array(probabilities)


def assert_same(first, second) -> None:
    assert first[0][0] == second[0][0]
    # Weights and inputs may be rounded to 8 bits.
    np.testing.assert_allclose(of_tokens(first), of_tokens(second), atol=0.03)


def of_tokens(top) -> np.ndarray:
    """Probabilities by token, 0 for those that are not among the top tokens."""
    probabilities = np.zeros(VOCAB)
    probabilities[top[0]] = top[1]
    return probabilities


def expect(model: DraftNetwork, parts: list[list[int]], answer: Sequence[int] = ()):
    """The top tokens of the torch module."""
    ids, _, seen = batch_tensors([(parts, list(answer))])
    last = sum(map(len, parts)) + len(answer) - 1
    with torch.no_grad():
        logits = model.logits(ids, torch.tensor(CANDIDATES, dtype=torch.long), seen)[0, last]
    probabilities, indices = logits.softmax(-1).topk(NUM_TOP)
    return CANDIDATES[indices].tolist(), probabilities.numpy()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_trained_module(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    model, embedding = write_draft_model(tmp_path, dtype=dtype)
    kernel = kernel_of(load_weights(tmp_path, embedding), kind)
    found, expected = ask(kernel, (0, TOKENS)), expect(model, [TOKENS[:1]], TOKENS[1:])
    assert_same(found, expected)
    if (relative := tolerance(kind)) is not None:
        assert found[0] == expected[0]
        np.testing.assert_allclose(found[1], expected[1], rtol=relative)  # weights of the module are not rounded


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_bidirectional_part_see_all_of_it_and_the_parts_before(tmp_path: Path, kind: str) -> None:
    model, embedding = write_draft_model(tmp_path)
    kernel = kernel_of(load_weights(tmp_path, embedding), kind)
    parts, answer = [TOKENS[:37], TOKENS[37:50]], TOKENS[50:]
    pieces = ((0, parts[0]), (37, parts[1]), (50, answer))
    found = ask(kernel, *pieces, bidirectional=2)
    assert_same(found, expect(model, parts, answer))
    assert np.abs(of_tokens(found) - of_tokens(ask(kernel, *pieces))).max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_how_tokens_are_split_into_calls(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    whole = ask(kernel, (0, TOKENS))
    assert_same(ask(kernel, (0, TOKENS[:7]), (7, TOKENS[7:8]), (8, TOKENS[8:40]), (40, TOKENS[40:])), whole)


@pytest.mark.parametrize("count", [1, 15, 16, 21, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_blocks_of_a_cache_can_be_copied(tmp_path: Path, kind: str, count: int) -> None:
    kernel = make_kernel(tmp_path, kind)
    first, copy = kernel.new_cache(), kernel.new_cache()
    ask(kernel, (0, TOKENS[:count]), cache=first)
    held = -(-count // CACHE_BLOCK) * CACHE_BLOCK
    copy.view(np.uint8)[:] = 255  # NaN: entries that were not copied must not be read
    copy[..., :held, :] = first[..., :held, :]
    assert_same(ask(kernel, (count, TOKENS[count:]), cache=copy), ask(kernel, (0, TOKENS)))
    assert MAX_TOKENS % CACHE_BLOCK == 0


@pytest.mark.parametrize("kind", KINDS)
def test_overwritten_cache_entries_have_no_effect(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    cache = kernel.new_cache()
    ask(kernel, (0, TOKENS[::-1]), cache=cache)
    assert_same(ask(kernel, (0, TOKENS[:30]), (30, TOKENS[30:35]), cache=cache), ask(kernel, (0, TOKENS[:35])))


@pytest.mark.parametrize("kind", KINDS)
def test_few_candidates_are_all_returned_and_their_probabilities_sum_to_1(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    tokens, probabilities = kernel.run(kernel.new_cache(), 0, TOKENS, np.array([4, 250], np.int32))
    assert sorted(tokens) == [4, 250]
    assert sum(probabilities) == pytest.approx(1.0)
    assert probabilities[0] >= probabilities[1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_ids_candidates_are_ranked_again_among_the_allowed_ones(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    cache, allowed = kernel.new_cache(), [12, 40, 77, 250]
    bits = np.zeros((VOCAB + 31) // 32, np.uint32)
    for token in allowed:
        bits[token // 32] |= np.uint32(1 << token % 32)
    kernel.run(cache, 0, TOKENS, CANDIDATES)
    again = kernel.run(cache, 0, (), CANDIDATES, bits.view(np.int32))
    among = kernel.run(cache, 0, TOKENS, np.array(allowed[:3], np.int32))
    assert again[0] == among[0]
    np.testing.assert_allclose(again[1], among[1], rtol=1e-5)
    assert kernel.run(cache, 0, (), CANDIDATES, np.zeros_like(bits).view(np.int32)) == ([], [])


def generate(kernel: DraftKernel, **how):
    """The tokens generated after the first 40, their probabilities, and the next top tokens."""
    return kernel.generate(kernel.new_cache(), 0, TOKENS[:40], CANDIDATES, **how)


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_tokens_are_generated_while_they_are_confident(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    tokens, probabilities, top = generate(kernel, max_tokens=5, min_confidence=0.0)
    assert len(tokens) == len(probabilities) == 5
    cache, read = kernel.new_cache(), TOKENS[:40]
    for token, probability in zip(tokens, probabilities, strict=True):
        expected = kernel.run(cache, 0, read, CANDIDATES)
        assert of_tokens(expected)[token] == pytest.approx(probability, abs=0.01) == expected[1][0]
        read = [*read, token]
    assert_same(top, kernel.run(cache, 0, read, CANDIDATES))
    limit = sorted(probabilities)[2]
    num_confident = next(i for i, p in enumerate([*probabilities, 0.0]) if p < limit)
    assert generate(kernel, max_tokens=5, min_confidence=limit)[0] == tokens[:num_confident]
    assert generate(kernel, max_tokens=2, min_confidence=0.0)[0] == tokens[:2]
    assert generate(kernel, max_tokens=5, min_confidence=1.1)[:2] == ([], [])
    assert len(generate(kernel, max_tokens=10 * MAX_GENERATED, min_confidence=0.0)[0]) == MAX_GENERATED


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_trigrams_determine_follow_with_probability_1(tmp_path: Path, kind: str) -> None:
    tokens, _, _ = generate(make_kernel(tmp_path, kind), max_tokens=2, min_confidence=0.0)
    a, b, c, d = *tokens, 15, 16
    pairs = [
        (a, b, c),
        (b, c, d),
        (a, 0, 1),
        (a, VOCAB - 1, 1),
        (0, b, 1),
        (VOCAB - 1, b, 1),
        (TOKENS[38], a, 1),
    ]
    weights = load_weights(tmp_path, write_draft_model(tmp_path, trigrams=pairs)[1])
    kernel = kernel_of(weights, kind)
    generated, probabilities, top = generate(kernel, max_tokens=4, min_confidence=0.0)
    assert (generated, probabilities[2:]) == ([a, b, c, d], [1.0, 1.0])
    assert_same(top, kernel.run(kernel.new_cache(), 0, TOKENS[:40] + generated, CANDIDATES))
    assert generate(kernel, max_tokens=3, min_confidence=0.0)[0] == [a, b, c]


@pytest.mark.parametrize("kind", KINDS)
def test_generation_ends_at_the_maximum_length(tmp_path: Path, kind: str) -> None:
    kernel = make_kernel(tmp_path, kind)
    ids = (TOKENS * 9)[: MAX_TOKENS - 2]
    tokens, _, top = kernel.generate(kernel.new_cache(), 0, ids, CANDIDATES, max_tokens=8, min_confidence=0.0)
    assert len(tokens) == 2
    assert_same(top, kernel.run(kernel.new_cache(), 0, ids + tokens, CANDIDATES))


@needs_compiler
def test_a_bitmask_that_is_too_short_is_refused(tmp_path: Path) -> None:
    kernel = make_kernel(tmp_path, "native")
    with pytest.raises(ValueError, match="bits"):
        kernel.run(kernel.new_cache(), 0, TOKENS, CANDIDATES, np.zeros(VOCAB // 32, np.int32))


@needs_compiler
@pytest.mark.parametrize(
    ("start", "ids", "candidates"),
    [
        (0, [VOCAB], CANDIDATES),
        (0, [-1], CANDIDATES),
        (-1, [1], CANDIDATES),
        (MAX_TOKENS, [1], CANDIDATES),
        (0, [1] * (MAX_TOKENS + 1), CANDIDATES),
        (0, [1], np.array([-1, 2, 3, 4], np.int32)),
        (0, [1], np.array([1, 2, 3, VOCAB], np.int32)),
    ],
)
def test_tokens_and_positions_out_of_range_are_refused(tmp_path: Path, start: int, ids: list[int], candidates) -> None:
    kernel = make_kernel(tmp_path, "native")
    with pytest.raises(IndexError):
        kernel.run(kernel.new_cache(), start, ids, candidates)


def test_without_a_compiler_the_numpy_kernel_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_weights(tmp_path, write_draft_model(tmp_path)[1])
    monkeypatch.setattr("serving.drafting.draft_model.build_library", lambda: None)
    assert isinstance(create_draft_kernel(weights), NumpyDraft)
