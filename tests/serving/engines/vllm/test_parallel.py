"""TENSOR_PARALLEL_SIZE=auto: as many GPUs as can have equal parts of the model; needs neither vLLM nor a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.engines.vllm.options import Shape, choose_tensor_parallel_size, read_shape
from serving.errors import WeightsError

LLAMA_8B = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336}
SMOLLM = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "intermediate_size": 1536}
QWEN_7B = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}


def shape_of(folder: Path, config: dict[str, object]) -> Shape:
    (folder / "config.json").write_text(json.dumps(config))
    return read_shape(folder)


@pytest.mark.parametrize(
    ("config", "num_devices", "size"),
    [
        (LLAMA_8B, 1, 1),
        (LLAMA_8B, 0, 1),
        (LLAMA_8B, 4, 4),
        (LLAMA_8B, 7, 4),
        (LLAMA_8B, 16, 16),  # each KV head is on two GPUs
        (SMOLLM, 2, 1),
        (SMOLLM, 8, 3),
        (SMOLLM, 9, 3),  # 9 heads, and 1536 columns that 9 does not divide
        (QWEN_7B, 8, 4),  # 7 divides 28 heads and not 4 KV heads
        ({"num_attention_heads": 6}, 8, 6),  # as many KV heads as heads
    ],
)
def test_the_largest_number_that_divides_the_model(
    config: dict[str, object], num_devices: int, size: int, tmp_path: Path
) -> None:
    assert choose_tensor_parallel_size(shape_of(tmp_path, config), num_devices)[0] == size


def test_quantized_weights_that_share_a_scale_stay_on_one_gpu(tmp_path: Path) -> None:
    quantized = {**LLAMA_8B, "quantization_config": {"quant_method": "awq", "group_size": 128}}
    assert choose_tensor_parallel_size(shape_of(tmp_path, quantized), 32)[0] == 16, "14336 is 112 groups of 128"
    assert choose_tensor_parallel_size(shape_of(tmp_path, LLAMA_8B), 32)[0] == 32


def test_the_choice_is_explained(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, SMOLLM)
    assert "one GPU" in choose_tensor_parallel_size(shape, 1)[1]
    assert "all 3 GPUs" in choose_tensor_parallel_size(shape, 3)[1]
    reason = choose_tensor_parallel_size(shape, 8)[1]
    assert "of the 8 GPUs" in reason
    assert "9 attention heads" in reason


def test_a_multimodal_model_has_its_heads_in_text_config(tmp_path: Path) -> None:
    assert shape_of(tmp_path, {"text_config": SMOLLM}) == shape_of(tmp_path, SMOLLM)


def test_the_error_of_a_checkpoint_without_heads_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="set TENSOR_PARALLEL_SIZE"):
        shape_of(tmp_path, {"n_head": 12})
