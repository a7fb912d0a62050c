"""Chooses how many GPUs share a model, by the rules of vLLM's tensor parallelism."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import WeightsError


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model that tensor parallelism divides among GPUs.

    Args:
        num_heads: number of attention heads.
        num_kv_heads: number of heads of keys and values.
        widths: input dimensions of the matrices that are divided by input.
        group_size: number of quantized weights that share a scale and must stay together; 1 if not quantized.
    """

    num_heads: int
    num_kv_heads: int
    widths: tuple[int, ...] = ()
    group_size: int = 1

    def can_be_divided(self, size: int) -> bool:
        """Whether vLLM can give each of `size` GPUs an equal part; it may copy KV heads instead of dividing them."""
        fewer, more = sorted((self.num_kv_heads, size))
        return (
            self.num_heads % size == 0
            and more % fewer == 0
            and all(width % (size * self.group_size) == 0 for width in self.widths)
        )


def read_shape(weights_dir: Path) -> Shape:
    """Read the shape from a checkpoint's config.json.

    Raises:
        WeightsError: config.json has no number of attention heads.
    """
    path = weights_dir / "config.json"
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config = whole.get("text_config", whole)  # multimodal models have a separate text_config
    if not isinstance(num_heads := config.get("num_attention_heads"), int):
        raise WeightsError(f"{path} has no num_attention_heads; set TENSOR_PARALLEL_SIZE to the number of GPUs to use")
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // num_heads
    widths = (num_heads * head_dim, config.get("intermediate_size") or 0)
    quantization = whole.get("quantization_config") or {}
    return Shape(
        num_heads,
        config.get("num_key_value_heads") or num_heads,
        tuple(width for width in widths if width),
        max(1, quantization.get("group_size") or 1),  # -1: one scale for a whole row, so any division is possible
    )


def choose_tensor_parallel_size(shape: Shape, num_devices: int) -> tuple[int, str]:
    """The largest number of GPUs that can share the model evenly, and the reason."""
    size = next((n for n in range(num_devices, 1, -1) if shape.can_be_divided(n)), 1)
    if num_devices <= 1:
        return 1, "there is one GPU"
    if size == num_devices:
        return size, f"all {num_devices} GPUs can share the model's {shape.num_heads} attention heads"
    group = f", in groups of {shape.group_size}" if shape.group_size > 1 else ""
    return size, (
        f"a larger number of the {num_devices} GPUs cannot divide {shape.num_heads} attention heads, "
        f"{shape.num_kv_heads} heads of keys and values and widths of {shape.widths}{group} evenly"
    )
