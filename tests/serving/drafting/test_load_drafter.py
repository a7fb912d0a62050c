"""The embedding is found in whichever file of a checkpoint has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from serving.drafting.load_drafter import read_input_embedding
from serving.errors import WeightsError


def test_the_embedding_is_read_in_its_own_type_from_the_file_that_has_it(tmp_path: Path) -> None:
    embedding = torch.randn(7, 3).bfloat16()
    save_file({"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model-00002-of-00002.safetensors")
    found = read_input_embedding(tmp_path)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, embedding)


def test_a_folder_without_one_is_named(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=str(tmp_path)):
        read_input_embedding(tmp_path)
