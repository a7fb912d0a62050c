"""The tokenizers under test: one of each family, and the small model's if it is built."""

from __future__ import annotations

import pytest

from serving.text import Tokenizer
from tests import small_model, tiny_tokenizers


@pytest.fixture(scope="session")
def base_tokenizer() -> Tokenizer:
    folder = small_model.WEIGHTS  # has the base model's tokenizer
    assert (folder / "tokenizer.json").is_file(), f"{folder} is not built; {small_model.BUILD} does it"
    return Tokenizer.from_dir(folder)


@pytest.fixture(params=["byte_level", "metaspace", pytest.param("base", marks=pytest.mark.weights)])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "base":
        return request.getfixturevalue("base_tokenizer")
    return getattr(tiny_tokenizers, request.param)()
