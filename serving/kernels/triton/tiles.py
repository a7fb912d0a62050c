"""The sizes of the Triton kernels' tiles and splits. They are fixed, so that a row's sums have one order."""

from __future__ import annotations

from dataclasses import dataclass

from serving.kernels.base import AttentionShape

ROWS = 16  # of a dot
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class TileSizes:
    """Sizes of tiles and splits, all powers of two. The defaults have not been tuned on a GPU.

    Args:
        columns: outputs of a tile of a matmul.
        inputs: inputs of a step of a 4-bit matmul, at most; a step lies within a group.
        dense_inputs: inputs of a step of an unquantized matmul.
        split_inputs: inputs that one program adds up.
        keys: keys of a step of attention.
        split_keys: keys that one program attends to.
        adapter_columns: outputs of a tile of an adapter's second product.
    """

    columns: int = 32  # with 64 columns of 128 inputs, a tile of 64 rows spills registers
    inputs: int = 128
    dense_inputs: int = 64
    split_inputs: int = 1024
    keys: int = 32
    split_keys: int = 512
    adapter_columns: int = 64

    def awq_inputs(self, group_size: int) -> int:
        """Inputs of a step: the largest power of two that divides the group size, up to `inputs`."""
        return min(self.inputs, group_size & -group_size)

    def split(self, step: int) -> int:
        """Inputs that one program adds up in steps of `step`: at least one step."""
        return max(self.split_inputs, step)


@dataclass(frozen=True)
class AttentionTile:
    """The rows of a request that one program computes, each with all query heads of a KV head.

    Args:
        group: query heads of a KV head.
        rows: rows of the tile.
        pairs: of a row and a head, rounded up to a power of two.
        width: the head dimension, rounded up to a power of two.
    """

    group: int
    rows: int
    pairs: int
    width: int

    @classmethod
    def of(cls, shape: AttentionShape) -> AttentionTile:
        """The tile for an attention layer."""
        group = shape.num_heads // shape.num_kv_heads
        pairs = max(ROWS, power_of_two(group))
        return cls(group, pairs // group, pairs, max(16, power_of_two(shape.head_dim)))


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def unsupported(group_size: int | None, head_dim: int) -> str | None:
    """Why these kernels cannot compute a model, with the remedy; None if they can.

    Args:
        group_size: of the 4-bit weights; None if they are not quantized.
        head_dim: of its attention.
    """
    if group_size is not None and group_size % ROWS:
        return (
            f"config.json has group_size {group_size}, and the CUDA kernels compute multiples of {ROWS}; quantize "
            "with group size 64 or 128 (scripts/quantize_awq)"
        )
    if head_dim > MAX_HEAD_DIM:
        return (
            f"config.json has head_dim {head_dim}, and the CUDA kernels compute up to {MAX_HEAD_DIM}; use ENGINE=vllm"
        )
    return None
