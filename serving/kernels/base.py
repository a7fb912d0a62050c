"""The seam between layers and whatever computes: one protocol, several machines.

Owns: the `Kernels` protocol and the values that cross it. Knows nothing of checkpoints, of layers or
of scheduling. `reference.py` is the oracle, `cpu.py` the C++ kernels; a GPU's slot in beside them.
Outputs are arguments, so that the caller decides where they lie and a test can poison them first.

    kernels = create_kernels("cpu")
    kernels.rms_norm(x, weight, 1e-5, out=normed)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class Activations(StrEnum):
    """What the inputs of 4-bit matmuls are rounded to. Sums, and all that is not said here, are float32."""

    FLOAT32 = "float32"  # not at all
    INT16 = "int16"  # 16 bits, a scale for each row and group: faster on CPUs, exact sums
    BFLOAT16 = "bfloat16"  # so are their weights, and attention: fastest, where the CPU has tiles; else INT16


BFLOAT16_GROUPS = 64  # BFLOAT16 is INT16 for weights whose group size is not a multiple of it


@dataclass(frozen=True)
class AttentionMetadata:
    """Which rows of one ragged batch belong to which request, and where their KV lies. All int32."""

    query_start: Tensor  # [num_seqs + 1] cumulative rows
    context_lens: Tensor  # [num_seqs] tokens in the KV cache after this step, this step's included
    block_tables: Tensor  # [num_seqs, max_blocks] padded with 0
    slot_mapping: Tensor  # [num_tokens] block * block_size + offset


@dataclass(frozen=True)
class AwqTensors:
    """One AWQ layer as AutoAWQ's GEMM layout stores it; nibble order 0, 2, 4, 6, 1, 3, 5, 7."""

    qweight: Tensor  # [K, N // 8] int32
    qzeros: Tensor  # [K // group_size, N // 8] int32
    scales: Tensor  # [K // group_size, N] float16
    group_size: int


@dataclass(frozen=True)
class AwqWeight:
    """A 4-bit weight in the layout of the kernels that packed it: nobody else may look inside."""

    quants: Tensor
    zeros: Tensor
    scales: Tensor
    in_features: int
    out_features: int
    group_size: int


@dataclass(frozen=True)
class DenseWeight:
    """Unquantized matrices that share their input, one below the other, as the checkpoint holds them.

    They stay apart so that a memory-mapped checkpoint is used in place.
    """

    parts: tuple[Tensor, ...]  # each [N_i, K] float16, bfloat16 or float32

    @property
    def in_features(self) -> int:
        """Columns of every part."""
        return int(self.parts[0].shape[1])

    @property
    def out_features(self) -> int:
        """Rows of all parts."""
        return sum(int(part.shape[0]) for part in self.parts)


LinearWeight = AwqWeight | DenseWeight


@dataclass(frozen=True)
class AttentionShape:
    """The geometry of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None  # keys a query sees, itself included; None sees all


@dataclass(frozen=True)
class DecoderLayerWeights:
    """What one decoder layer holds, for kernels that run all layers in one call."""

    input_norm: Tensor  # [hidden] float32
    qkv: LinearWeight
    output: LinearWeight
    post_attention_norm: Tensor  # [hidden] float32
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True)
class DecoderWeights:
    """A whole decoder between embedding and head."""

    layers: tuple[DecoderLayerWeights, ...]
    final_norm: Tensor  # [hidden] float32
    attention: AttentionShape
    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float


@dataclass(frozen=True)
class ChosenProducts:
    """What `chosen_products` writes, in the CPU's memory."""

    counts: Tensor  # [n] int32; −1: more columns than there is room for
    columns: Tensor  # [n, most] int32, ascending, as many as counted
    products: Tensor  # [n, most] float32; 0 where a row has one column, which needs no product to be chosen

    @classmethod
    def empty(cls, rows: int, most: int) -> ChosenProducts:
        """Room for `most` columns in each of `rows` rows."""
        return cls(
            torch.empty(rows, dtype=torch.int32),
            torch.empty(rows, most, dtype=torch.int32),
            torch.empty(rows, most),
        )


class Angles(Protocol):
    """Rotary embedding by position, as far as it was asked for."""

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [positions, head_dim // 2] float32."""
        ...

    def grow(self, length: int) -> None:
        """Make tables of at least `length` positions."""
        ...


class DecoderPlan(Protocol):
    """Embedding and all layers in one call; the same bits as one by one with the same kernels."""

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        metadata: AttentionMetadata,
        out: Tensor,
    ) -> None:
        """input_ids, positions: [T] int32; `out` [T, hidden] float32 is normed."""
        ...


class Kernels(Protocol):
    """Everything that a forward pass computes. T is the number of rows in the batch."""

    @property
    def name(self) -> str:
        """For logs and results."""
        ...

    @property
    def row_cost(self) -> float:
        """What one more row costs, as a share of a pass without rows: so dear is a wrong draft."""
        ...

    def embedding(self, ids: Tensor, table: Tensor, out: Tensor) -> None:
        """out[t] = table[ids[t]].  ids: [T] int32; table: [V, H]; out: [T, H] float32."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out = x / rms(x) · weight.  x, out: [T, H] float32; weight: [H] float32."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """residual += x; out = rms_norm(residual).  All [T, H] float32."""
        ...

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """out = silu(gate) · up.  gate_up: [T, 2 I]; out: [T, I] float32."""
        ...

    def rotary_and_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        shape: AttentionShape,
    ) -> None:
        """Rotate the queries in place; rotate the keys, and write keys and values to their slots.

        qkv: [T, (heads + 2 kv_heads) · head_dim] float32; cos, sin: [T, head_dim // 2] float32.
        """
        ...

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """Causal attention of the (rotated) queries over blocks.  out: [T, heads · head_dim] float32."""
        ...

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """One layer's cache [num_blocks, 2, kv_heads, block_size · head_dim], not initialised.

        Only the first dimension is for others: block i is `cache[i]`. Type and layout are the kernels' own.
        """
        ...

    def place_table(self, table: Tensor) -> Tensor:
        """The embedding or the head, moved to where the kernels like to read it, or as it is."""
        ...

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """Repack once, at load, into the layout that `awq_gemm` wants."""
        ...

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """out = x · w, w = (q − z) · s.  x: [T, K]; out: [T, N] float32."""
        ...

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out = x · weightᵀ.  x: [T, K] float32; weight: [N, K] any float.

        out: [T, N] float32; its rows may be further apart than N.
        """
        ...

    def chosen_products(
        self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, chosen: ChosenProducts
    ) -> None:
        """Row rows[i] of x times the rows of the weight that bitmasks[i] has; the bits of `dense_gemm`.

        x: [T, K] float32; weight: [N, K] any float; rows: [n] int32; bitmasks: [n, ceil(N / 32)] int32,
        lowest bit first, in the CPU's memory, bits past N clear.
        """
        ...

    def plan_decoder(self, embedding: Tensor, weights: DecoderWeights, angles: Angles) -> DecoderPlan | None:
        """Run all layers in one call; None when these kernels go layer by layer."""
        ...
