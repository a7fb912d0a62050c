"""The interface between layers and kernels: the `Kernels` protocol and the types of its arguments.

`reference.py` implements it in plain torch, `cpu.py` in C++, `triton/` for GPUs. Outputs are arguments, so that the
caller allocates them and a test can fill them with NaN first.

    kernels = create_kernels(Device.CPU)
    kernels.rms_norm(x, weight, 1e-5, out=normed)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from serving.kernels.lora import LoraBatch, LoraSite
from serving.kernels.rope import RotaryTable


@dataclass(frozen=True)
class MaskedProducts:
    """The output of `masked_products`, on the CPU."""

    counts: Tensor  # [n] int32; −1 for a row with more than max_columns columns
    columns: Tensor  # [n, max_columns] int32, the first counts[i] in ascending order
    products: Tensor  # [n, max_columns] float32; 0 in a row with one column, which is chosen whatever its product is

    @classmethod
    def empty(cls, rows: int, max_columns: int) -> MaskedProducts:
        """Uninitialized output for `rows` rows of up to `max_columns` columns."""
        return cls(
            torch.empty(rows, dtype=torch.int32),
            torch.empty(rows, max_columns, dtype=torch.int32),
            torch.empty(rows, max_columns),
        )


class Activations(StrEnum):
    """What the inputs of the linear layers' matmuls are rounded to. Sums and everything else are float32.

    `rounds_dense` says whether those of unquantized layers are rounded.
    """

    FLOAT32 = "float32"  # not rounded
    INT16 = "int16"  # one scale for each row and group: faster on CPUs, with exact sums
    # Like INT16 in 8 bits, fastest without AMX tiles. Attention and unquantized layers are bfloat16 where the CPU has
    # dot products of it.
    INT8 = "int8"
    BFLOAT16 = "bfloat16"  # weights and attention too: fastest with AMX tiles; without them this means INT8


BFLOAT16_GROUPS = 64  # for weights whose group size is not a multiple of this, BFLOAT16 means INT16
INT8_MAX_GROUP = 512  # for weights with larger groups, INT8 means INT16


def rounds_dense(weight: Tensor, activations: Activations, *, has_dots: bool = False) -> bool:
    """Whether an unquantized linear layer [N, K] and its inputs are rounded to bfloat16.

    `has_dots` is whether the kernels have dot products of bfloat16 beside inputs in 8 bits.
    """
    rounds = activations is Activations.BFLOAT16 or (has_dots and activations is Activations.INT8)
    return rounds and weight.shape[0] % 16 == 0 and weight.shape[1] % 32 == 0


PADDING_SLOT = -1  # the slot of rows behind the last request's, which only kernels for GPUs get and nothing stores


@dataclass(frozen=True)
class AttentionMetadata:
    """Which rows of a ragged batch belong to which request, and where their keys and values are. All int32."""

    query_start: Tensor  # [num_seqs + 1] cumulative number of rows
    context_lens: Tensor  # [num_seqs] tokens in the KV cache, including those of this step
    block_tables: Tensor  # [num_seqs, max_blocks] block numbers, padded with 0
    slot_mapping: Tensor  # [num_tokens] block * block_size + offset; PADDING_SLOT in rows that are padding


# AutoAWQ: nibble i of an int32 belongs to column AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class AwqTensors:
    """One AWQ layer in AutoAWQ's GEMM layout; nibble order 0, 2, 4, 6, 1, 3, 5, 7."""

    qweight: Tensor  # [K, N // 8] int32
    qzeros: Tensor  # [K // group_size, N // 8] int32
    scales: Tensor  # [K // group_size, N] float16
    group_size: int


@dataclass(frozen=True)
class AwqWeight:
    """A 4-bit weight in the private layout of the kernels that packed it; a tensor that they do not need is empty."""

    quants: Tensor
    zeros: Tensor
    scales: Tensor
    in_features: int
    out_features: int
    group_size: int


@dataclass(frozen=True)
class DenseWeight:
    """Unquantized matrices that share their input; their outputs are concatenated.

    They are not merged, so that loading needs no second copy of them.
    """

    parts: tuple[Tensor, ...]  # each [N_i, K] float16, bfloat16 or float32

    @property
    def in_features(self) -> int:
        """Number of columns of every part."""
        return int(self.parts[0].shape[1])

    @property
    def out_features(self) -> int:
        """Number of rows of all parts together."""
        return sum(int(part.shape[0]) for part in self.parts)


LinearWeight = AwqWeight | DenseWeight


@dataclass(frozen=True)
class AttentionShape:
    """The dimensions of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None  # number of keys that a query sees, including its own; None: all

    @property
    def qkv_width(self) -> int:
        """The values of a row of queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True)
class QkvAdjustment:
    """Operations on queries, keys and values before rotation, which only some architectures have.

    Args:
        bias: [(heads + 2 kv_heads) · head_dim] float32, added first (Qwen2, some Llama), or None.
        query_norm: [head_dim] float32, weight of an RMS norm of each query head (Qwen3), or None.
        key_norm: the same for each key head; both norms are given, or neither.
        eps: the epsilon of the norms.
    """

    bias: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True)
class DecoderLayerWeights:
    """The weights of one decoder layer, for kernels that run all layers in one call."""

    input_norm: Tensor  # [hidden] float32
    qkv: LinearWeight
    output: LinearWeight
    post_attention_norm: Tensor  # [hidden] float32
    gate_up: LinearWeight
    down: LinearWeight
    qkv_adjustment: QkvAdjustment | None = None
    output_bias: Tensor | None = None  # [hidden] float32
    gate_up_bias: Tensor | None = None  # [2 · intermediate] float32
    down_bias: Tensor | None = None  # [hidden] float32


@dataclass(frozen=True)
class DecoderWeights:
    """The weights of a decoder, without embedding and head."""

    layers: tuple[DecoderLayerWeights, ...]
    final_norm: Tensor  # [hidden] float32
    attention: AttentionShape
    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each `Projection` of a layer."""
        hidden, inner, shape = self.hidden_size, self.intermediate_size, self.attention
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        attention = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden))
        return (*attention, (hidden, inner), (hidden, inner), (inner, hidden))


class DecoderPlan(Protocol):
    """Runs the embedding and all layers in one call, with the same bits as the kernels one by one."""

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        metadata: AttentionMetadata,
        out: Tensor,
        lora: LoraBatch | None = None,
    ) -> None:
        """Run one forward pass.

        Args:
            input_ids: [T] int32.
            positions: [T] int32.
            kv_caches: one for each layer, from `Kernels.allocate_kv_cache`.
            metadata: the requests of the batch and where their keys and values are.
            out: [T, hidden] float32, after the final norm.
            lora: the adapters of the rows that have one.
        """
        ...


class HeadScreen(Protocol):
    """Finds the tokens that may have the largest logit, by a smaller copy of the head with a bound of its errors."""

    def narrow(self, x: Tensor, rows: Tensor, bitmasks: Tensor) -> Tensor:
        """Clear the bits of tokens whose logit for x[rows[i]] cannot be the largest of those in bitmasks[i].

        All tokens with the largest logit, as `masked_products` computes it, keep their bits. On text a median of 14
        of 151,936 bits is left.

        Args:
            x: [T, H] float32.
            rows: [n] int32.
            bitmasks: [n, ceil(V / 32)] int32, lowest bit first; bits from V on are clear.

        Returns:
            [n, 2] float32: the logit of a token whose bit is left, exact, and the only one's if it is alone; and
            approximately the logarithm of the summed exponentials of the logits whose bits were cleared.
        """
        ...


class Kernels(Protocol):
    """All computations of a forward pass; T is the number of rows in the batch.

    What has a body here does for kernels that need nothing else.
    """

    @property
    def name(self) -> str:
        """Name for logs and results."""
        ...

    @property
    def row_cost(self) -> float:
        """Cost of one more row relative to the fixed cost of a forward pass; the cost of a rejected draft token."""
        ...

    def embedding(self, ids: Tensor, table: Tensor, out: Tensor) -> None:
        """out[t] = table[ids[t]].  ids: [T] int32; table: [V, H]; out: [T, H] float32."""
        ...

    @property
    def activation_dtype(self) -> torch.dtype:
        """The dtype of the inputs of matmuls inside the layers."""
        return torch.float32

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out = x / rms(x) · weight.  x: [T, H] float32; out: [T, H] float32 or activation dtype; weight: [H]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """residual += x; out = rms_norm(residual).

        x: [T, H] or its parts [P, T, H], residual: [T, H], both float32; out: [T, H] float32 or activation dtype.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """out = silu(gate) · up.  gate_up: [T, 2 I] or its parts [P, T, 2 I] float32; out: [T, I] activation dtype."""
        ...

    def rotary_and_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        shape: AttentionShape,
        adjustment: QkvAdjustment | None = None,
    ) -> None:
        """Adjust and rotate the queries in place, adjust and rotate the keys, and write keys and values to their slots.

        qkv: [T, (heads + 2 kv_heads) · head_dim] float32, or its parts [P, T, …], of which the first gets the queries;
        cos, sin: [T, head_dim // 2] float32.
        """
        ...

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """Causal attention of the queries over the KV cache.

        qkv: as `rotary_and_store_kv` left it; out: [T, heads · head_dim] activation dtype.
        """
        ...

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """One layer's KV cache [num_blocks, 2, kv_heads, block_size · head_dim], uninitialized.

        Callers may only index the first dimension: block i is `cache[i]`. The dtype and the layout within a block are
        the kernels' own.
        """
        ...

    def populate(self, kv_caches: Sequence[Tensor]) -> None:
        """Have the system allocate the caches' memory before it is first written; to be run in a thread of its own.

        It may do nothing. The caches may be used meanwhile.
        """
        return

    def place_table(self, table: Tensor) -> Tensor:
        """The embedding or the head [V, H], copied to memory that the kernels read fast, or as it is."""
        return table

    def place_linear(self, weight: Tensor) -> Tensor:
        """An unquantized weight [N, K] as `dense_gemm` with rounding takes it: see `rounds_dense`."""
        ...

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """Convert a weight into the layout of `awq_gemm`; done once, when a model is loaded."""
        ...

    def num_parts(self, weight: AwqWeight) -> int:
        """The number P of parts of a product with this weight, which whoever uses it may add up in their order."""
        return 1

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """out = x · w, w = (q − z) · s.  x: [T, K] activation dtype; out: [T, N] or its parts [P, T, N] float32."""
        ...

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor, *, rounds: bool = False) -> None:
        """out = x · weightᵀ.  x: [T, K] float32 or activation dtype; weight: [N, K] any float.

        out: [T, N] float32; its row stride may exceed N.
        rounds: whether x may be rounded as in linear layers (`Activations`); the head's is not.
        """
        ...

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """out[t] += (x[t] · down · scaling) · up, for the rows with an adapter.

        x: [T, K] activation dtype; out: [T, N] float32.
        """
        ...

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """For each i, multiply x[rows[i]] with those rows of the weight whose bit is set in bitmasks[i].

        The results have the same bits as those of `dense_gemm` without rounding.

        x: [T, K] float32; weight: [N, K] any float; rows: [n] int32 and bitmasks: [n, ceil(N / 32)] int32, both on the
        CPU; lowest bit first, bits from N on clear.
        """
        ...

    def make_screen(self, head: Tensor) -> HeadScreen | None:
        """A screen of a head [V, H] of any float, which must stay in place; None if these kernels have none."""
        return None

    def plan_decoder(self, embedding: Tensor, weights: DecoderWeights, rotary: RotaryTable) -> DecoderPlan | None:
        """Prepare to run all layers in one call; None if these kernels run layer by layer."""
        return None
