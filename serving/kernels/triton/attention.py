"""Paged attention and the KV cache in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, QkvAdjustment
from serving.kernels.shape_checks import check_adjustment, check_metadata, check_tensor, require
from serving.kernels.triton import attention_device, elementwise_device
from serving.kernels.triton.launching import launch
from serving.kernels.triton.tiles import MAX_HEAD_DIM, MAX_PART_BYTES, AttentionTile, TileSizes, power_of_two

_SPLIT_PROGRAMS = 16  # programs of a tile and KV head at most: a recorded pass launches them for the longest context
_SOME_HEADS = 8  # heads that one program rotates


class TritonAttention:
    """Writes keys and values to the KV cache, and attends to them.

    A block of the cache is [2, kv_heads, block_size, head_dim]. Slots, block numbers and contexts are not checked: that
    would have to wait for the GPU.

    Args:
        tiles: sizes of tiles and splits.
        half: whether the cache and the inputs of matmuls are float16 instead of float32; sums are float32.
    """

    def __init__(self, tiles: TileSizes, *, half: bool) -> None:
        self._tiles = tiles
        self._dtype = torch.float16 if half else torch.float32
        self._dot_dtype = tl.float16 if half else tl.float32

    def allocate(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, device: str) -> Tensor:
        """See `Kernels.allocate_kv_cache`."""
        return torch.empty(num_blocks, 2, num_kv_heads, block_size * head_dim, dtype=self._dtype, device=device)

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
        parts, rows = (1, *qkv.shape)[-3:-1]
        block_size = self._check(qkv, kv_cache, shape)
        check_tensor("cos", cos, (rows, shape.head_dim // 2), torch.float32)
        check_tensor("sin", sin, (rows, shape.head_dim // 2), torch.float32)
        check_tensor("slot_mapping", slot_mapping, (rows,), torch.int32)
        adjustment = adjustment or QkvAdjustment()
        check_adjustment(adjustment, shape)
        changes = (adjustment.bias, adjustment.query_norm, adjustment.key_norm)
        launch(
            elementwise_device.rotary_and_store_kv,
            (rows, triton.cdiv(shape.num_heads + 2 * shape.num_kv_heads, _SOME_HEADS)),
            *(qkv, *(cos if change is None else change for change in changes)),
            *(cos, sin, kv_cache, slot_mapping, rows, parts, block_size, adjustment.eps),
            HAS_BIAS=adjustment.bias is not None,
            HAS_NORMS=adjustment.query_norm is not None,
            HEADS=shape.num_heads,
            KV_HEADS=shape.num_kv_heads,
            DIM=shape.head_dim,
            SOME_HEADS=_SOME_HEADS,
            BLOCK=power_of_two(shape.head_dim // 2),
        )

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """See `Kernels.paged_attention`."""
        qkv = qkv[0] if qkv.dim() == 3 else qkv  # the rotated queries are in the first part
        rows = qkv.shape[0]
        block_size = self._check(qkv, kv_cache, shape)
        check_metadata(metadata, rows)
        check_tensor("out", out, (rows, shape.num_heads * shape.head_dim), self._dtype)
        tile = AttentionTile.of(shape)
        num_seqs, table_width = metadata.block_tables.shape
        num_tiles = rows // tile.rows + num_seqs
        splits = triton.cdiv(table_width * block_size, self._tiles.split_keys)
        row_bytes = 4 * shape.num_heads * splits * (shape.head_dim + 2)
        # Adjacent tiles have adjacent rows, so those of one launch are at most `room` apart.
        at_once = num_tiles if rows * row_bytes <= MAX_PART_BYTES else max(1, MAX_PART_BYTES // (tile.rows * row_bytes))
        room = min(rows, at_once * tile.rows)
        parts = torch.empty(room, shape.num_heads, splits, shape.head_dim, device=qkv.device)
        stats = torch.empty(room, shape.num_heads, splits, 2, device=qkv.device)
        batch = (metadata.query_start, metadata.context_lens)
        sizes = {
            **{"KV_HEADS": shape.num_kv_heads, "DIM": shape.head_dim, "GROUP": tile.group, "TILE_ROWS": tile.rows},
            **{"PAIRS": tile.pairs, "BLOCK": tile.width, "SPLIT": self._tiles.split_keys},
            "WINDOW": shape.sliding_window or 0,
        }
        for first in range(0, num_tiles, at_once):
            count = min(at_once, num_tiles - first)
            launch(
                attention_device.attend_splits,
                (count, shape.num_kv_heads, min(splits, _SPLIT_PROGRAMS)),
                *(qkv, kv_cache, *batch, metadata.block_tables, parts, stats),
                *(num_seqs, first, splits, room, table_width, block_size, shape.head_dim**-0.5),
                KEYS=self._tiles.keys,
                DTYPE=self._dot_dtype,
                num_stages=2,  # with three it spills registers
                **sizes,
            )
            launch(
                attention_device.combine_splits,
                (count, shape.num_kv_heads),
                *(*batch, parts, stats, out, num_seqs, first, splits, room),
                **sizes,
            )

    def _check(self, qkv: Tensor, kv_cache: Tensor, shape: AttentionShape) -> int:
        """Check queries and cache; returns the block size."""
        require(shape.head_dim <= MAX_HEAD_DIM, f"head_dim {shape.head_dim} is over {MAX_HEAD_DIM}")
        check_tensor("qkv", qkv, (None,) * (qkv.dim() - 1) + (shape.qkv_width,), torch.float32)
        check_tensor("kv_cache", kv_cache, (None, 2, shape.num_kv_heads, None), self._dtype)
        block_size, rest = divmod(kv_cache.shape[3], shape.head_dim)
        require(block_size > 0 and rest == 0, f"kv_cache has blocks of {kv_cache.shape[3]}, head_dim {shape.head_dim}")
        return block_size
