"""Rounding with error feedback: it is GPTQ with approximate moments, and lowers the error of a layer's outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.weights.awq_checkpoint import AwqCheckpoint
from pipeline.weights.awq_format import PackedWeight, dequantize, quantize, unpack
from pipeline.weights.awq_moments import input_moments
from pipeline.weights.awq_search_result import AwqSearchResult, load_search_result, save_search_result
from pipeline.weights.error_feedback import Feedback, quantize_with_feedback
from tests.pipeline.weights.checkpoint_fixtures import Arrays

GROUP = 16


def inputs(seed: int, channels: int, tokens: int = 400) -> np.ndarray:
    """Inputs that mostly lie in a few directions, with some loud channels, as in real models."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(tokens, 5)) @ rng.normal(size=(5, channels)) + 0.5 * rng.normal(size=(tokens, channels))
    return mixed * rng.lognormal(size=channels)


def moments(x: np.ndarray, rank: int) -> Feedback:
    scaled = x / np.sqrt(len(x))
    _, values, vectors = np.linalg.svd(scaled, full_matrices=False)
    return Feedback.of(("layer",), np.sqrt((scaled**2).sum(axis=0)), values[:rank, None] * vectors[:rank])


@pytest.mark.parametrize(("tokens", "channels", "rank"), [(300, 64, 8), (5, 64, 8), (300, 8, 32)])
def test_the_search_finds_the_moments_of_an_exact_svd(tokens: int, channels: int, rank: int) -> None:
    x = inputs(1, channels, tokens)
    x[:, 2] = 0
    norms, components = input_moments(torch.from_numpy(x), rank)
    assert components.shape == (min(rank, tokens, channels), channels)
    found, exact = Feedback.of(("layer",), norms.numpy(), components.numpy()), moments(x, rank)
    assert found.factors.flags.c_contiguous
    np.testing.assert_allclose(found.norms, exact.norms, rtol=1e-5)
    difference = found.components.T @ found.components - exact.components.T @ exact.components
    assert np.abs(difference).max() < 0.02 * (exact.norms**2).max()


def weight(seed: int, outputs: int, channels: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(outputs, channels)).astype(np.float32)


def output_error(x: np.ndarray, exact: np.ndarray, packed: PackedWeight) -> float:
    return float((((dequantize(packed, GROUP) - exact) @ x.T) ** 2).sum())


def gptq_levels(exact: np.ndarray, plain: PackedWeight, hessian: np.ndarray) -> np.ndarray:
    """The paper's algorithm with a Cholesky factor, in fp64: levels [K, N]."""
    steps = np.repeat(plain.scales.astype(np.float64), GROUP, axis=0)
    zeros = np.repeat(unpack(plain.qzeros), GROUP, axis=0).astype(np.float64)
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    rest, levels = exact.T.astype(np.float64), np.empty(exact.T.shape)
    for k in range(len(rest)):
        levels[k] = np.clip(np.rint(rest[k] / steps[k]) + zeros[k], 0, 15)
        error = (rest[k] - (levels[k] - zeros[k]) * steps[k]) / upper[k, k]
        rest[k:] -= upper[k, k:, None] * error
    return levels


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
@pytest.mark.parametrize("rank", [3, 32])
def test_it_is_gptq_with_the_approximate_moments(seed: int, rank: int) -> None:
    exact, feedback = weight(seed, 24, 32), moments(inputs(seed, 32), rank)
    hessian = feedback.components.T @ feedback.components + np.diag(feedback.diagonal)
    found = quantize_with_feedback(exact, exact, GROUP, feedback)
    np.testing.assert_array_equal(unpack(found.qweight), gptq_levels(exact, quantize(exact, GROUP), hessian))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_the_error_of_outputs_falls_and_a_higher_rank_helps_more(seed: int) -> None:
    exact, x = weight(seed, 64, 128), inputs(seed, 128)
    plain = output_error(x, exact, quantize(exact, GROUP))
    errors = [output_error(x, exact, quantize_with_feedback(exact, exact, GROUP, moments(x, r))) for r in (1, 8)]
    assert errors[0] < 0.9 * plain
    assert errors[1] < 0.5 * plain


def test_without_directions_each_weight_is_rounded_to_nearest() -> None:
    exact = weight(5, 16, 64)
    nothing = Feedback(("layer",), np.ones(64, np.float32), np.zeros((4, 64), np.int8))
    found, nearest = quantize_with_feedback(exact, exact, GROUP, nothing), quantize(exact, GROUP)
    for part in ("qweight", "qzeros", "scales"):
        np.testing.assert_array_equal(getattr(found, part), getattr(nearest, part))


def test_an_output_s_bytes_do_not_depend_on_the_other_outputs() -> None:
    """Otherwise the order of sums would depend on the shape, and so perhaps on the processor."""
    exact, feedback = weight(6, 48, 64), moments(inputs(6, 64), 8)
    whole = unpack(quantize_with_feedback(exact, exact, GROUP, feedback).qweight)
    for rows in (slice(0, 8), slice(8, 48)):
        part = unpack(quantize_with_feedback(exact[rows], exact[rows], GROUP, feedback).qweight)
        np.testing.assert_array_equal(part, whole[:, rows])


def test_steps_come_from_the_clipped_weight() -> None:
    exact, feedback = weight(7, 16, 64), moments(inputs(7, 64), 8)
    clipped = np.clip(exact, -1, 1)
    found = quantize_with_feedback(exact, clipped, GROUP, feedback)
    np.testing.assert_array_equal(found.scales, quantize(clipped, GROUP).scales)


def test_inputs_that_are_always_zero_are_rounded_to_nearest() -> None:
    exact, x = weight(8, 16, 64), inputs(8, 64)
    x[:, 3] = 0
    for feedback in (moments(x, 8), moments(np.zeros_like(x), 8)):
        found = unpack(quantize_with_feedback(exact, exact, GROUP, feedback).qweight)
        np.testing.assert_array_equal(found[3], unpack(quantize(exact, GROUP).qweight)[3])


def test_a_search_result_keeps_the_moments_and_a_checkpoint_uses_them(tmp_path: Path) -> None:
    layer = "model.layers.0.mlp.up_proj"
    exact, found = weight(9, 16, 64), moments(inputs(9, 64), 8)
    feedback = Feedback((layer, "model.layers.0.mlp.gate_proj"), found.norms, found.factors)
    path = tmp_path / "search.safetensors"
    save_search_result(path, AwqSearchResult(GROUP, feedback_groups=[feedback]))
    search = replace(load_search_result(path), fingerprint="sha256:another")
    assert replace(search, feedback_groups=()).feedback == {}
    assert search.feedback.keys() == {layer, "model.layers.0.mlp.gate_proj"}
    checkpoint = AwqCheckpoint(Arrays({f"{layer}.weight": exact}), search)
    expected = quantize_with_feedback(exact, exact, GROUP, feedback)
    np.testing.assert_array_equal(checkpoint.load(f"{layer}.qweight"), expected.qweight)
    assert output_error(inputs(9, 64), exact, expected) < output_error(inputs(9, 64), exact, quantize(exact, GROUP))
