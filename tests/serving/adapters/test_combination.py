"""A recipe that is wrong, or of which a part would be ignored, is refused."""

from __future__ import annotations

import pytest

from serving.adapters.combination import Combination, Method
from serving.errors import AdapterError


def make(method="ties", names=("a", "b"), weights=(1, 0.5), density=0.5, seed=None):
    return Combination(method, names, weights, density, seed)


def test_a_method_may_be_given_by_its_name():
    assert make().method is Method.TIES
    assert make("dare_ties", weights=(-1, 0.0), density=1, seed=7).seed == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "svd"}, "method: 'svd' is unknown; there are linear, cat, ties, dare_linear, dare_ties, mean"),
        ({"method": ["ties"]}, "is unknown"),
        ({"names": ("a",), "weights": (1,)}, "give at least two, each once"),
        ({"names": ("a", "a")}, "give at least two, each once"),
        ({"weights": (1,)}, "1 weights for 2 adapters"),
        ({"weights": (1, "x")}, "the weight of b is 'x'; it must be a number"),
        ({"weights": (1, True)}, "the weight of b is True"),
        ({"weights": (1, float("nan"))}, "the weight of b is nan"),
        ({"weights": (10**400, 1)}, "the weight of a is 1000"),
        ({"density": None}, "density is missing"),
        ({"density": 0}, "density: 0 must be above 0"),
        ({"density": 1.5}, "density: 1.5 must be above 0 and up to 1"),
        ({"seed": 1}, "seed: 1 would be ignored by method ties; remove it"),
        ({"method": "linear"}, "density: 0.5 would be ignored by method linear"),
        ({"method": "dare_ties", "seed": -1}, "seed: -1 must be a whole number"),
        ({"method": "mean", "density": None, "weights": (1, 0)}, "the weight of b is 0; method mean needs"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(AdapterError, match=message):
        make(**change)
