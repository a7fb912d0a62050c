"""Adapters in Triton: copy them to the device, and multiply all rows of a batch that have one in two launches.

An adapter is copied when a step first uses it, and its copy is dropped with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from serving.kernels.lora import LoraAdapter, LoraBatch, LoraSite, Projection
from serving.kernels.shape_checks import check_lora_matrices, check_tensor, require
from serving.kernels.triton import lora_device
from serving.kernels.triton.launching import launch
from serving.kernels.triton.tiles import ROWS, TileSizes
from serving.kernels.upload import upload

_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True)
class _Packed:
    """An adapter on the device; a place is a layer's projection, counted through all layers.

    Args:
        values: all matrices, of one type.
        table: [places, 5] int64, see `lora_device`.
        shapes: inputs and outputs of each place.
        ranks: the largest ranks of each place.
    """

    values: Tensor
    table: Tensor
    shapes: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Tiles:
    """A batch on the device.

    Args:
        by_type: [tiles, 3] int64, see `lora_device`, of the adapters of each type.
        shapes: the shapes of all adapters.
        ranks: the largest rank of each place.
        stop: the row after the last one with an adapter.
    """

    by_type: Mapping[torch.dtype, Tensor]
    shapes: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    stop: int


class TritonLora:
    """Adds the adapters' part to the outputs of linear layers.

    Args:
        tiles: sizes of tiles and splits.
        device: torch's name of it.
        half: whether inputs of matmuls are rounded to tf32; sums are float32.
    """

    def __init__(self, tiles: TileSizes, device: str, *, half: bool) -> None:
        self._sizes = tiles
        self._device = device
        self._precision = "tf32" if half else "ieee"
        self._packed: WeakKeyDictionary[LoraAdapter, _Packed] = WeakKeyDictionary()
        self._latest: tuple[ref[LoraBatch], _Tiles] | None = None  # all layers of a step have the same batch

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """See `Kernels.add_lora`."""
        check_tensor("x", x, (None, None), (torch.float32, torch.float16))
        (rows, inputs), parts = x.shape, len(site.projections)
        check_tensor("out", out, (rows, None), torch.float32)
        tiles = self._tiles_of(lora)
        require(tiles.stop <= rows, f"rows up to {tiles.stop} of {rows}")
        place = site.layer * len(Projection) + site.projections[0]
        shapes = tiles.shapes[place : place + parts]
        widths = [width for _, width in shapes]
        require(sum(widths) == out.shape[1], f"adapters of {widths} columns for {out.shape[1]}")
        require(all(depth == inputs for depth, _ in shapes), f"adapters of other inputs than {inputs}")
        rank_blocks = triton.cdiv(max(tiles.ranks[place : place + parts]), ROWS)
        if rank_blocks == 0:
            return
        step, split = self._sizes.dense_inputs, self._sizes.adapter_inputs
        splits = triton.cdiv(inputs, split)
        ranks = rank_blocks * ROWS
        between = torch.empty(splits, rows, parts, ranks, device=x.device)
        for dtype, table in tiles.by_type.items():
            constants = {"PARTS": parts, "TYPE": _TYPES[dtype], "PRECISION": self._precision}
            launch(
                lora_device.shrink,
                (table.shape[0], splits, parts * rank_blocks),
                *(x, table, between, rows, inputs, ranks, place),
                INPUTS=step,
                SPLIT_STEPS=split // step,
                **constants,
            )
            columns = self._sizes.adapter_columns
            launch(
                lora_device.expand,
                (table.shape[0], triton.cdiv(max(widths), columns), parts),
                *(between, table, out, rows, out.shape[1], ranks, place, splits),
                COLUMNS=columns,
                **constants,
            )

    def _tiles_of(self, batch: LoraBatch) -> _Tiles:
        if self._latest is None or self._latest[0]() is not batch:
            self._latest = ref(batch), self._make_tiles(batch)
        return self._latest[1]

    def _make_tiles(self, batch: LoraBatch) -> _Tiles:
        by_type: dict[torch.dtype, list[tuple[int, int, int]]] = {}
        used = [self._pack(segment.adapter) for segment in batch.segments]
        for segment, packed in zip(batch.segments, used, strict=True):
            require(0 <= segment.first < segment.stop, f"rows {segment.first} to {segment.stop}")
            require(packed.shapes == used[0].shapes, "adapters of different models")
            for first in range(segment.first, segment.stop, ROWS):
                tile = (first, min(ROWS, segment.stop - first), packed.table.data_ptr())
                by_type.setdefault(packed.values.dtype, []).append(tile)
        return _Tiles(
            {dtype: self._upload(tiles) for dtype, tiles in by_type.items()},
            used[0].shapes,
            tuple(map(max, zip(*(packed.ranks for packed in used), strict=True))),
            max(segment.stop for segment in batch.segments),
        )

    def _pack(self, adapter: LoraAdapter) -> _Packed:
        packed = self._packed.get(adapter)
        if packed is None:
            self._packed[adapter] = packed = self._copy(adapter)
        return packed

    def _copy(self, adapter: LoraAdapter) -> _Packed:
        """Copy an adapter to the device, in the smallest type that holds all of its numbers."""
        places = [matrices for layer in adapter.layers for matrices in layer]
        for matrices in places:
            check_lora_matrices(matrices)
        both = [tensor for one in places for tensor in (one.down, one.up)]
        dtypes = {tensor.dtype for tensor in both if tensor.numel()} or {torch.float32}
        dtype = reduce(torch.promote_types, dtypes)
        padded = [functional.pad(tensor.to(dtype), (0, -tensor.shape[1] % 16)).flatten() for tensor in both]
        values = torch.cat(padded).to(self._device)
        offsets = [0, *accumulate(tensor.numel() for tensor in padded)]
        addresses = [values.data_ptr() + offset * values.itemsize for offset in offsets]
        table = [
            (addresses[2 * i], addresses[2 * i + 1], one.rank, one.up.shape[1], _bits(one.scaling))
            for i, one in enumerate(places)
        ]
        shapes = tuple((one.down.shape[1], one.up.shape[1]) for one in places)
        return _Packed(values, self._upload(table), shapes, tuple(one.rank for one in places))

    def _upload(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        return upload(torch.tensor(rows, dtype=torch.int64, device="cpu"), self._device)


def _bits(number: float) -> int:
    """The bits of a float32."""
    return int(np.float32(number).view(np.int32))
