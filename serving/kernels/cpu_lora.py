"""Pass the adapters of a batch to the C++ kernels."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from serving.kernels.base import DecoderWeights
from serving.kernels.lora import LoraAdapter, LoraBatch, LoraMatrices, LoraSite, Projection
from serving.kernels.shape_checks import check_lora_matrices, require
from serving.kernels.structs import MAX_PARTS, dtype_code

_TILE = 16  # kLoraRows of cpp/lora.h


class CLoraPart(Structure):
    """The struct `LoraPart` of cpp/lora.h, field by field."""

    _fields_ = (
        ("down", c_void_p),
        ("up", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("scaling", c_float),
    )


class CLoraTile(Structure):
    """The struct `LoraTile` of cpp/lora.h, field by field."""

    _fields_ = (("first", c_int64), ("rows", c_int64), ("parts", POINTER(CLoraPart)))


class CLoraBatch(Structure):
    """The struct `LoraBatch` of cpp/lora.h, field by field."""

    _fields_ = (("tiles", POINTER(CLoraTile)), ("count", c_int64), ("max_rank", c_int64), ("between", c_void_p))


class CLoraSite(Structure):
    """The struct `LoraSite` of cpp/lora.h, field by field."""

    _fields_ = (("place", c_int64), ("parts", c_int64), ("inputs", c_int64), ("widths", c_int64 * MAX_PARTS))


@dataclass(frozen=True)
class LoraArguments:
    """A batch for C++, and what its addresses point to."""

    struct: CLoraBatch
    keep_alive: tuple[object, ...]


class LoraTables:
    """Makes the arguments of a batch; an adapter's own table is made once, and dropped with the adapter.

    Args:
        weights: the weights of the model whose adapters these are; None if each call checks the shapes itself.
    """

    def __init__(self, weights: DecoderWeights | None = None) -> None:
        self._weights = weights
        self._tables: WeakKeyDictionary[LoraAdapter, ctypes.Array[CLoraPart]] = WeakKeyDictionary()

    def arguments(self, batch: LoraBatch, rows: int) -> LoraArguments:
        """The batch's segments in tiles of neighbouring rows.

        Raises:
            KernelArgumentError: a segment is not within the rows, or an adapter has a wrong tensor.
        """
        tiles = []
        for segment in batch.segments:
            require(0 <= segment.first < segment.stop <= rows, f"rows {segment.first} to {segment.stop} of {rows}")
            table = self._table(segment.adapter)
            for first in range(segment.first, segment.stop, _TILE):
                tiles.append(CLoraTile(first, min(_TILE, segment.stop - first), table))
        max_rank = max(segment.adapter.max_rank for segment in batch.segments)
        between = torch.empty(rows * MAX_PARTS * max_rank)
        array = (CLoraTile * len(tiles))(*tiles)
        return LoraArguments(CLoraBatch(array, len(tiles), max_rank, between.data_ptr()), (array, between, batch))

    def _table(self, adapter: LoraAdapter) -> ctypes.Array[CLoraPart]:
        table = self._tables.get(adapter)
        if table is None:
            self._check(adapter)
            parts = [_part(matrices) for layer in adapter.layers for matrices in layer]
            self._tables[adapter] = table = (CLoraPart * len(parts))(*parts)
        return table

    def _check(self, adapter: LoraAdapter) -> None:
        if self._weights is None:
            return
        expected = [self._weights.projections] * len(self._weights.layers)
        actual = [tuple((one.down.shape[1], one.up.shape[1]) for one in layer) for layer in adapter.layers]
        require(actual == expected, "an adapter of another model")


def _part(matrices: LoraMatrices) -> CLoraPart:
    down, up = matrices.down, matrices.up
    check_lora_matrices(matrices)
    return CLoraPart(down.data_ptr(), up.data_ptr(), dtype_code(down.dtype), matrices.rank, matrices.scaling)


def site_struct(batch: LoraBatch, site: LoraSite, x: Tensor, out: Tensor) -> CLoraSite:
    """A site, whose widths are those of the adapters; x: [T, K], out: [T, N].

    Raises:
        KernelArgumentError: an adapter does not fit x and out.
    """
    widths: list[int] = []
    for segment in batch.segments:
        parts = [segment.adapter.layers[site.layer][projection] for projection in site.projections]
        widths = [part.up.shape[1] for part in parts]
        require(sum(widths) == out.shape[1], f"adapters of {widths} columns for {out.shape[1]}")
        require(all(part.down.shape[1] == x.shape[1] for part in parts), f"adapters of other inputs than {x.shape[1]}")
    place = site.layer * len(Projection) + site.projections[0]
    return CLoraSite(place, len(widths), x.shape[1], (c_int64 * MAX_PARTS)(*widths))
