"""What settings mean for the paged engine, and what it refuses."""

from __future__ import annotations

import pytest

from serving.config import Settings
from serving.engines.paged.options import activations, max_draft_tokens
from serving.errors import SettingError
from serving.kernels.base import Activations


def test_inputs_are_rounded_except_with_dtype_float32():
    assert activations(Settings()) is Activations.BFLOAT16
    assert activations(Settings(dtype="float32")) is Activations.FLOAT32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_engine_s_dtype_is_refused_with_the_valid_ones(dtype):
    with pytest.raises(SettingError, match=r"set auto .* or float32"):
        activations(Settings(dtype=dtype))


def test_max_draft_tokens_is_refused_without_a_drafter():
    assert max_draft_tokens(Settings(speculation="off")) == 0
    assert max_draft_tokens(Settings(max_draft_tokens=7)) == 7
    with pytest.raises(SettingError, match=r"MAX_DRAFT_TOKENS=7 would be ignored with SPECULATION=off"):
        max_draft_tokens(Settings(speculation="off", max_draft_tokens=7))
