"""The sizes of the Triton kernels' tiles and splits. They are fixed, so that a row's sums have one order."""

from __future__ import annotations

from dataclasses import dataclass

from serving.kernels.base import AttentionShape

ROWS = 16  # rows of a dot
ROW_TILES = (1, 2, 4)  # dots of a program of a matmul: the first that has room for all rows, or the last
STEP = 32  # the smallest number of inputs of a step of a 4-bit matmul
MAX_HEAD_DIM = 256
MAX_PART_BYTES = 128 << 20  # memory of the parts of attention; more tiles are computed in several launches


@dataclass(frozen=True)
class TileSizes:
    """Sizes of tiles and splits, all powers of two. The defaults have not been tuned on a GPU.

    Args:
        columns: outputs of a program of a 4-bit matmul; columns times inputs of a step is at least 1,024 times `warps`.
        inputs: inputs of a step of a 4-bit matmul, at most; a step lies within a group.
        dense_columns: outputs of a program of an unquantized matmul.
        dense_inputs: inputs of a step of an unquantized matmul.
        programs: matmuls with fewer programs than this divide their inputs into splits.
        warps: number of warps of a program of a matmul; the stored order of 4-bit weights depends on it.
        stages: steps of a matmul that are loaded at once.
        keys: keys of a step of attention.
        split_keys: keys that one program attends to.
        adapter_columns: outputs of a tile of an adapter's second product.
        adapter_inputs: inputs that one program of an adapter's first product adds up.
    """

    columns: int = 128
    inputs: int = 128
    dense_columns: int = 64
    dense_inputs: int = 64
    programs: int = 256
    warps: int = 4
    stages: int = 4
    keys: int = 32
    split_keys: int = 128
    adapter_columns: int = 64
    adapter_inputs: int = 1024

    def awq_inputs(self, group_size: int) -> int:
        """Inputs of a step: the largest power of two that divides the group size, up to `inputs`."""
        return min(self.inputs, group_size & -group_size)

    def split_steps(self, tiles: int, steps: int) -> int:
        """Steps that one program adds up, for a matmul with so many column tiles and steps of its inputs."""
        splits = min(-(-self.programs // tiles), max(1, steps // 2))
        return -(-steps // splits)


# For the interpreter, which takes milliseconds for a step of any size and computes tiny models.
SMALL_TILES = TileSizes(
    columns=32,
    inputs=64,
    dense_columns=32,
    dense_inputs=32,
    programs=6,
    warps=1,
    keys=16,
    split_keys=64,
    adapter_inputs=128,
)


@dataclass(frozen=True)
class AttentionTile:
    """The rows of a request that one program computes, each with all query heads of a KV head.

    Args:
        group: query heads of a KV head.
        rows: rows of the tile.
        pairs: number of pairs of a row and a head, rounded up to a power of two.
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
        group_size: the group size of the 4-bit weights; None if they are not quantized.
        head_dim: the head dimension of its attention.
    """
    if group_size is not None and group_size % STEP:
        return (
            f"config.json has group_size {group_size}, and the CUDA kernels compute multiples of {STEP}; quantize "
            "with group size 64 or 128 (scripts/quantize_awq)"
        )
    if head_dim > MAX_HEAD_DIM:
        return (
            f"config.json has head_dim {head_dim}, and the CUDA kernels compute up to {MAX_HEAD_DIM}; use ENGINE=vllm"
        )
    return None
