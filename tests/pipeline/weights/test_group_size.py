"""The group size divides every layer and every GPU's part of it; otherwise the error names a layer."""

from __future__ import annotations

import pytest

from pipeline.weights.errors import CheckpointError
from pipeline.weights.quantize_model import choose_group_size
from pipeline.weights.tensors import TensorSpec


def model(
    hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int = 0
) -> tuple[dict[str, TensorSpec], dict[str, int]]:
    """Specs of one decoder layer, and its config."""
    dim = head_dim or hidden // heads
    shapes = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv_heads * dim, hidden),
        "self_attn.v_proj": (kv_heads * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    specs = {f"model.layers.0.{name}.weight": TensorSpec("F32", shape) for name, shape in shapes.items()}
    specs["model.embed_tokens.weight"] = TensorSpec("F32", (100, hidden))
    return specs, {"num_attention_heads": heads, "num_key_value_heads": kv_heads}


MISTRAL = model(4096, 14336, 32, 8)
QWEN_HALF_BILLION = model(896, 4864, 14, 2)
SMOLLM = model(576, 1536, 9, 3)


@pytest.mark.parametrize(
    ("shapes", "gpus", "expected"),
    [
        (MISTRAL, 1, 128),
        (MISTRAL, 8, 128),
        (MISTRAL, 16, 128),  # more GPUs than KV heads: copies of those
        (MISTRAL, 32, 64),  # 14336 / 32 = 448 = 7 · 64
        (QWEN_HALF_BILLION, 1, 128),
        (QWEN_HALF_BILLION, 2, 64),  # 896 / 2 = 448
        (SMOLLM, 1, 64),
        (SMOLLM, 3, 64),  # 576 / 3 = 192 = 3 · 64
    ],
)
def test_the_largest_that_divides_every_part_is_chosen(
    shapes: tuple[dict[str, TensorSpec], dict[str, int]], gpus: int, expected: int
) -> None:
    assert choose_group_size(*shapes, gpus) == expected


def test_a_group_size_that_does_not_fit_names_the_layer() -> None:
    with pytest.raises(CheckpointError, match=r"down_proj has 576 inputs.*group size 128.*--group-size"):
        choose_group_size(*model(1024, 576, 8, 8), 1, (128,))
    with pytest.raises(CheckpointError, match=r"o_proj has 896 inputs.*shared by 2 GPUs.*--tensor-parallel"):
        choose_group_size(*model(896, 2048, 14, 2), 2, (128,))
    with pytest.raises(CheckpointError, match=r"down_proj has 4000 inputs.*group size 32"):
        choose_group_size(*model(1024, 4000, 8, 8), 2)


def test_outputs_must_fill_whole_words_on_every_gpu() -> None:
    with pytest.raises(CheckpointError, match=r"k_proj has 64 inputs and 12 outputs, shared by 2 GPUs.*outputs by 8"):
        choose_group_size(*model(64, 128, 8, 2, head_dim=6), 2, (8,))


@pytest.mark.parametrize("gpus", [2, 6])
def test_heads_that_gpus_cannot_share_are_refused(gpus: int) -> None:
    with pytest.raises(CheckpointError, match=rf"{gpus} GPUs cannot share 9 attention heads and 3 KV heads"):
        choose_group_size(*SMOLLM, gpus)


def test_a_checkpoint_with_other_names_is_refused() -> None:
    other = {"transformer.h.0.attn.weight": TensorSpec("F32", (64, 64))}
    with pytest.raises(CheckpointError, match="no linear layers named"):
        choose_group_size(other, {"num_attention_heads": 4}, 1)
