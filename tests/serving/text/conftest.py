"""The tokenizers under test: one of each family, and the default model's if it is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.text import Tokenizer
from tests import tiny_tokenizers

BASE = Path(__file__).parents[3] / "weights" / "honeycomb-nlq"  # has the base model's tokenizer


@pytest.fixture(scope="session")
def base_tokenizer() -> Tokenizer:
    assert (BASE / "tokenizer.json").is_file(), f"{BASE} is not built; scripts/build_weights does it"
    return Tokenizer.from_dir(BASE)


@pytest.fixture(params=["byte_level", "metaspace", pytest.param("base", marks=pytest.mark.weights)])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "base":
        return request.getfixturevalue("base_tokenizer")
    return getattr(tiny_tokenizers, request.param)()
