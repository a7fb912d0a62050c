"""Adapters are combined as PEFT does it, value by value."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from peft.utils import merge_utils

from serving.adapters.combination import Combination, Method
from serving.adapters.combine import LowRank, combine_layer, reduced
from serving.errors import AdapterError

LAYER = "model.layers.0.mlp.up_proj"
DENSITIES = {Method.TIES: 0.4, Method.DARE_LINEAR: 0.6, Method.DARE_TIES: 0.6}
ARITHMETIC = {
    Method.LINEAR: lambda tensors, weights, density: merge_utils.task_arithmetic(tensors, weights),
    Method.TIES: merge_utils.ties,
    Method.DARE_LINEAR: merge_utils.dare_linear,
    Method.DARE_TIES: merge_utils.dare_ties,
}


def change(seed, *, rank=4, scaling=2.0, inputs=9, outputs=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
    return LowRank(a.to(dtype), b.to(dtype), scaling)


def recipe(method, weights, **options):
    names = tuple("abcdef"[: len(weights)])
    return Combination(method, names, tuple(weights), **{"density": DENSITIES.get(Method(method))} | options)


def delta(one):
    return one.scaling * one.b.double() @ one.a.double()


@pytest.mark.filterwarnings("ignore:The density 1.0")
@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("method", ARITHMETIC)
def test_factors_are_those_of_peft(method, density):
    """With a negative weight, scalings that differ, and random numbers that stay the same in every version."""
    weights, scalings = (0.7, -0.4, 1.1), (2.0, 0.5, 3.0)
    parts = {name: change(i, scaling=s) for i, (name, s) in enumerate(zip("abc", scalings, strict=True))}
    combination = recipe(method, weights, density=density if method in DENSITIES else None)
    found = combine_layer(LAYER, parts, combination)
    products = [w * s for w, s in zip(weights, scalings, strict=True)]
    torch.manual_seed(int.from_bytes(hashlib.sha256(f"0 {LAYER}".encode()).digest()[:8], "little"))
    expected = [
        ARITHMETIC[method](
            [part.a for part in parts.values()],
            torch.tensor([math.copysign(abs(p) ** 0.5, p) for p in products]),
            density,
        ),
        ARITHMETIC[method](
            [part.b for part in parts.values()], torch.tensor([abs(p) ** 0.5 for p in products]), density
        ),
    ]
    torch.testing.assert_close([found.a, found.b], expected, rtol=0, atol=0)
    assert found.scaling == 1.0


def test_cat_is_exactly_the_weighted_sum_of_changes_of_any_ranks():
    parts = {"a": change(0, rank=3), "b": change(1, rank=6, scaling=0.5)}
    found = combine_layer(LAYER, parts, recipe("cat", (0.7, -2.0)))
    assert found.a.shape[0] == 9
    torch.testing.assert_close(delta(found), 0.7 * delta(parts["a"]) - 2.0 * delta(parts["b"]), rtol=1e-5, atol=1e-5)


def test_a_reduced_change_is_the_nearest_one_of_that_rank():
    whole = combine_layer(LAYER, {"a": change(0, rank=4), "b": change(1, rank=3)}, recipe("cat", (0.5, 0.5)))
    assert reduced(whole, 7) is whole
    found = reduced(whole, 4)
    assert (found.a.shape, found.b.shape) == ((4, 9), (7, 4))
    u, values, v = torch.linalg.svd(delta(whole))
    torch.testing.assert_close(delta(found), u[:, :4] * values[:4] @ v[:4], rtol=1e-4, atol=1e-4)
    same = combine_layer(LAYER, {"a": change(0, rank=4), "b": change(0, rank=4)}, recipe("cat", (0.75, 0.25)))
    torch.testing.assert_close(delta(reduced(same, 4)), delta(change(0, rank=4)), rtol=1e-4, atol=1e-4)


def test_mean_keeps_the_scaling_and_divides_by_the_sum_of_the_weights():
    parts = {"a": change(0), "b": change(1)}
    found = combine_layer(LAYER, parts, recipe("mean", (3, 1)))
    torch.testing.assert_close(found.a, 0.75 * parts["a"].a + 0.25 * parts["b"].a)
    torch.testing.assert_close(found.b, 0.75 * parts["a"].b + 0.25 * parts["b"].b)
    assert found.scaling == 2.0
    same = combine_layer(LAYER, {"a": parts["a"], "b": parts["a"]}, recipe("mean", (1, 1)))
    assert torch.equal(same.a, parts["a"].a)
    assert torch.equal(same.b, parts["a"].b)


def test_an_adapter_that_does_not_change_the_layer_has_no_part_in_it():
    """PEFT leaves it out too, so that its weight does not count."""
    parts = {"a": change(0), "c": change(1)}
    found = combine_layer(LAYER, parts, recipe("linear", (1.0, 5.0, 0.5)))
    expected = combine_layer(LAYER, {"a": parts["a"], "b": parts["c"]}, recipe("linear", (1.0, 0.5)))
    assert torch.equal(found.a, expected.a)
    with pytest.raises(AdapterError, match="is not in all adapters"):
        combine_layer(LAYER, parts, recipe("mean", (1.0, 5.0, 0.5)))


def test_a_seed_gives_the_same_numbers_again_and_layers_have_different_ones():
    parts = {"a": change(0, inputs=64), "b": change(1, inputs=64)}

    def kept(layer, seed):
        return combine_layer(layer, parts, recipe("dare_linear", (1.0, 0.0), seed=seed)).a != 0

    first = kept(LAYER, 1)
    assert 0.4 < first.float().mean() < 0.8
    assert torch.equal(kept(LAYER, 1), first)
    assert torch.equal(kept(LAYER, None), kept(LAYER, 0))
    assert not torch.equal(kept(LAYER, 2), first)
    assert not torch.equal(kept("model.layers.1.mlp.up_proj", 1), first)


def test_a_transposed_view_and_half_precision_give_the_same_as_a_plain_float32_matrix():
    parts = {name: change(seed, dtype=torch.bfloat16) for seed, name in enumerate("ab")}
    views = {name: LowRank(p.a.T.contiguous().T, p.b.T.contiguous().T, p.scaling) for name, p in parts.items()}
    plain = {name: LowRank(p.a.float(), p.b.float(), p.scaling) for name, p in parts.items()}
    for method in ("dare_ties", "dare_linear", "linear"):
        one, two = (combine_layer(LAYER, these, recipe(method, (1.0, 0.5))) for these in (views, plain))
        assert torch.equal(one.a, two.a)
        assert torch.equal(one.b, two.b)
        assert one.a.dtype == torch.float32


def test_what_cannot_be_combined_is_refused_by_name():
    for other, message in (
        (change(1, rank=5), f"a has rank 4 in {LAYER}, b has 5; only method cat"),
        (change(1, inputs=8), f"a and b have different shapes in {LAYER}"),
    ):
        for method in ("linear", "ties", "mean"):
            with pytest.raises(AdapterError, match=message):
                combine_layer(LAYER, {"a": change(0), "b": other}, recipe(method, (1.0, 1.0)))
    with pytest.raises(AdapterError, match="with one scaling"):
        combine_layer(LAYER, {"a": change(0), "b": change(1, scaling=3.0)}, recipe("mean", (1.0, 1.0)))
    large = combine_layer(LAYER, {"a": change(0), "b": change(1)}, recipe("cat", (1e5, 1.0)))
    with pytest.raises(AdapterError, match=r"does not fit torch\.float16; use smaller weights"):
        large.to(torch.float16)
