"""Every kernel in plain torch: the reference in tests, and the fallback on any device.

AWQ weights stay in 4 bits and are dequantized one layer at a time, so it is slow but needs little memory. Unlike with
the C++ kernels, torch's matmul may round a row differently depending on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from serving.kernels.base import (
    AWQ_ORDER,
    BFLOAT16_GROUPS,
    INT8_MAX_GROUP,
    Activations,
    AttentionMetadata,
    AttentionShape,
    AwqTensors,
    AwqWeight,
    Kernels,
    MaskedProducts,
    QkvAdjustment,
    rounds_dense,
)
from serving.kernels.lora import LoraBatch, LoraSite


def unpack_awq(packed: Tensor, order: Sequence[int] = AWQ_ORDER) -> Tensor:
    """[R, N // 8] int32 → [R, N] int32 of values 0 … 15; `order` has the column of each nibble, the lowest first."""
    shifts = torch.empty(8, dtype=torch.int32, device=packed.device)
    for nibble, column in enumerate(order):
        shifts[column] = 4 * nibble
    return ((packed[:, :, None] >> shifts) & 15).reshape(packed.shape[0], -1)


def dequantize_awq(tensors: AwqTensors) -> Tensor:
    """(q − z) · s as [K, N] float32; exact, because the product has at most 16 significant bits."""
    group = tensors.group_size
    zeros = unpack_awq(tensors.qzeros).repeat_interleave(group, 0)
    scales = tensors.scales.float().repeat_interleave(group, 0)
    return (unpack_awq(tensors.qweight) - zeros).float() * scales


def round_inputs(x: Tensor, group_size: int, largest: int) -> Tensor:
    """x [M, K] with each group of a row rounded to integer multiples of its largest absolute value / `largest`."""
    groups = x.view(x.shape[0], -1, group_size)
    highest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.full_like(highest, largest) / highest  # largest / highest would round twice
    values = (groups * inverse.nan_to_num(posinf=0.0)).round()
    return (values * (highest / largest)).view_as(x)


def split_kv_cache(kv_cache: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Views of keys [blocks, kv_heads, head_dim, block_size] and values [blocks, kv_heads, block_size, head_dim].

    Keys are transposed, so that neighbouring positions are neighbours in memory.
    """
    blocks, _, kv_heads, size = kv_cache.shape
    keys = kv_cache[:, 0].view(blocks, kv_heads, head_dim, size // head_dim)
    return keys, kv_cache[:, 1].view(blocks, kv_heads, size // head_dim, head_dim)


class ReferenceKernels(Kernels):
    """See `Kernels`.

    Args:
        device: torch's name of it.
        activations: what inputs of linear layers are rounded to.
    """

    def __init__(self, device: str = "cpu", activations: Activations = Activations.FLOAT32) -> None:
        self._device = device
        self._activations = activations

    @property
    def name(self) -> str:
        """See `Kernels.name`."""
        return f"torch-{self._device}"

    @property
    def row_cost(self) -> float:
        """See `Kernels.row_cost`."""
        return 0.03  # an estimate: dequantizing takes most of the time, whatever the number of rows

    def embedding(self, ids: Tensor, table: Tensor, out: Tensor) -> None:
        """See `Kernels.embedding`."""
        out.copy_(table[ids.long()])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.rms_norm`."""
        variance = x.square().mean(-1, keepdim=True)
        out.copy_(x * torch.rsqrt(variance + eps) * weight)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.add_rms_norm`."""
        residual.add_(x)
        self.rms_norm(residual, weight, eps, out)

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `Kernels.silu_and_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        out.copy_(functional.silu(gate) * up)

    def adjust_qkv(self, qkv: Tensor, adjustment: QkvAdjustment, shape: AttentionShape) -> None:
        """Add the bias and normalize the heads of queries and keys, in place."""
        if adjustment.bias is not None:
            qkv += adjustment.bias
        if adjustment.query_norm is not None and adjustment.key_norm is not None:
            heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
            queries = heads[:, : shape.num_heads]
            keys = heads[:, shape.num_heads : shape.num_heads + shape.num_kv_heads]
            self.rms_norm(queries, adjustment.query_norm, adjustment.eps, queries)
            self.rms_norm(keys, adjustment.key_norm, adjustment.eps, keys)

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
        """See `Kernels.rotary_and_store_kv`."""
        if adjustment is not None:
            self.adjust_qkv(qkv, adjustment, shape)
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        rotating = heads[:, : shape.num_heads + shape.num_kv_heads]
        first, second = rotating.chunk(2, dim=-1)
        c, s = cos[:, None, :], sin[:, None, :]
        rotated = torch.cat((first * c - second * s, second * c + first * s), dim=-1)
        heads[:, : shape.num_heads] = rotated[:, : shape.num_heads]
        keys, values = split_kv_cache(kv_cache, shape.head_dim)
        slots = slot_mapping.long()
        block, offset = slots // values.shape[2], slots % values.shape[2]
        keys[block, :, :, offset] = rotated[:, shape.num_heads :]
        values[block, :, offset] = heads[:, shape.num_heads + shape.num_kv_heads :]

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """See `Kernels.paged_attention`."""
        queries = qkv[:, : shape.num_heads * shape.head_dim].view(-1, shape.num_heads, shape.head_dim)
        keys, values = split_kv_cache(kv_cache, shape.head_dim)
        starts, contexts = metadata.query_start.tolist(), metadata.context_lens.tolist()
        for i, context in enumerate(contexts):
            rows = slice(starts[i], starts[i + 1])
            blocks = metadata.block_tables[i, : -(-context // values.shape[2])].long()
            k = keys[blocks].permute(1, 2, 0, 3).flatten(2)[:, :, :context]  # [kv_heads, D, context]
            v = values[blocks].permute(1, 0, 2, 3).flatten(1, 2)[:, :context]
            out[rows] = _attend(queries[rows], k, v, context, shape)

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """See `Kernels.allocate_kv_cache`."""
        return torch.empty(num_blocks, 2, num_kv_heads, block_size * head_dim, device=self._device)

    def place_linear(self, weight: Tensor) -> Tensor:
        """See `Kernels.place_linear`."""
        return weight.bfloat16() if rounds_dense(weight, self._activations) else weight

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """See `Kernels.pack_awq`."""
        rows, columns = tensors.qweight.shape
        return AwqWeight(tensors.qweight, tensors.qzeros, tensors.scales, rows, columns * 8, tensors.group_size)

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        matrix = dequantize_awq(AwqTensors(weight.quants, weight.zeros, weight.scales, weight.group_size))
        if self._activations is Activations.BFLOAT16 and weight.group_size % BFLOAT16_GROUPS == 0:
            x, matrix = x.bfloat16().float(), matrix.bfloat16().float()
        elif self._activations is not Activations.FLOAT32:
            fits = self._activations is Activations.INT8 and weight.group_size <= INT8_MAX_GROUP
            x = round_inputs(x, weight.group_size, 127 if fits else 32767)
        out.copy_(x @ matrix)

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor, *, rounds: bool = False) -> None:
        """See `Kernels.dense_gemm`."""
        if rounds and rounds_dense(weight, self._activations):
            x = x.bfloat16().float()
        out.copy_(x @ weight.float().T)

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """See `Kernels.add_lora`."""
        for segment in lora.segments:
            rows = slice(segment.first, segment.stop)
            start = 0
            for projection in site.projections:
                matrices = segment.adapter.layers[site.layer][projection]
                between = x[rows] @ matrices.down.float().T * matrices.scaling
                stop = start + matrices.up.shape[1]
                out[rows, start:stop] += between @ matrices.up.float()
                start = stop

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """See `Kernels.masked_products`."""
        bits = np.unpackbits(bitmasks.numpy().view(np.uint8), axis=1, bitorder="little")
        for i, row in enumerate(rows.tolist()):
            columns = torch.from_numpy(np.flatnonzero(bits[i]))
            count = columns.shape[0]
            out.counts[i] = count if count <= out.columns.shape[1] else -1
            if count == 1:
                out.products[i, 0] = 0.0
            elif count <= out.columns.shape[1]:
                out.products[i, :count] = weight[columns.to(weight.device)].float() @ x[row]
            out.columns[i, :count] = columns[: out.columns.shape[1]]


def _attend(queries: Tensor, k: Tensor, v: Tensor, context: int, shape: AttentionShape) -> Tensor:
    """Attention of a request's last rows over its whole context → [rows, heads · head_dim]."""
    rows = queries.shape[0]
    grouped = queries.view(rows, shape.num_kv_heads, -1, shape.head_dim).permute(1, 2, 0, 3)
    scores = (grouped @ k[:, None]) * shape.head_dim**-0.5  # [kv_heads, group, rows, context]
    query_at = torch.arange(context - rows, context, device=queries.device)[:, None]
    key_at = torch.arange(context, device=queries.device)[None, :]
    masked = key_at > query_at
    if shape.sliding_window is not None:
        masked |= key_at <= query_at - shape.sliding_window
    weights = scores.masked_fill(masked, float("-inf")).softmax(-1)
    attended: Tensor = weights @ v[:, None]
    return attended.permute(2, 0, 1, 3).reshape(rows, -1)
