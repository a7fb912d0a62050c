"""What settings mean for the paged engine, and what it refuses."""

from __future__ import annotations

import pytest

from serving.config import Settings
from serving.errors import EngineNotAvailableError
from serving.kernels.base import Activations
from serving.paged.choices import activations


def test_inputs_are_rounded_unless_float32_is_asked_for():
    assert activations(Settings()) is Activations.BFLOAT16
    assert activations(Settings(dtype="float32")) is Activations.FLOAT32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_type_of_another_engine_is_refused_with_what_to_set(dtype):
    with pytest.raises(EngineNotAvailableError, match=r"set auto .* or float32"):
        activations(Settings(dtype=dtype))
