"""Products of rows with a few chosen rows of a weight in Triton, for a head of which a grammar allows few tokens.

Only the chosen rows of the weight are read. Tiles and splits are those of `TritonMatmul.dense_gemm`, and so are the
bits.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from serving.kernels.base import MaskedProducts
from serving.kernels.shape_checks import DENSE_DTYPES, check_tensor, require
from serving.kernels.triton import matmul_device
from serving.kernels.triton.launching import launch
from serving.kernels.triton.matmul import dense_sizes, dense_splits, make_parts, sum_parts
from serving.kernels.triton.tiles import TileSizes
from serving.kernels.upload import upload

_NONE = -1  # in a tile: no column


class TritonChosen:
    """Multiplies float32 rows with some rows of an unquantized weight.

    Args:
        tiles: sizes of tiles and splits.
        half: whether inputs are rounded, see `TritonMatmul`; sums are float32.
    """

    def __init__(self, tiles: TileSizes, *, half: bool) -> None:
        self._tiles = tiles
        self._half = half

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """See `Kernels.masked_products`. Rows with one column, or too many, are not computed."""
        check_tensor("weight", weight, (None, None), DENSE_DTYPES)
        num_outputs, num_inputs = weight.shape
        check_tensor("x", x, (None, num_inputs), torch.float32)
        count, most = out.columns.shape
        check_tensor("rows", rows, (count,), torch.int32)
        check_tensor("bitmasks", bitmasks, (count, triton.cdiv(num_outputs, 32)), torch.int32)
        masks = bitmasks.numpy()
        beyond = -1 << (num_outputs % 32) if num_outputs % 32 else 0  # the bits of the last word that no output has
        require(not (masks[:, -1:] & np.int32(beyond)).any(), f"bits beyond the {num_outputs} rows of the weight")
        counts = np.bitwise_count(masks.view(np.uint32)).sum(axis=1, dtype=np.int64)
        fits = counts <= most
        out.counts.copy_(torch.from_numpy(np.where(fits, counts, -1)))
        out.products.zero_()
        columns = out.columns.zero_().numpy()
        for i in np.flatnonzero((counts > 0) & fits).tolist():
            columns[i, : counts[i]] = set_bits(masks[i])
        computed = np.flatnonzero((counts > 1) & fits)
        if not computed.size:
            return
        of_x = rows.numpy()[computed]
        require(int(of_x.min()) >= 0 and int(of_x.max()) < x.shape[0], f"rows {of_x.tolist()} of {x.shape[0]}")
        products = out.products.numpy()
        starts, tiles = self._list(columns, counts, computed)
        found = self._multiply(x, weight, tiles, np.repeat(of_x, np.diff(starts))).reshape(-1)
        for i, start in zip(computed.tolist(), (starts * self._tiles.dense_columns).tolist(), strict=False):
            products[i, : counts[i]] = found[start : start + counts[i]]

    def _list(
        self, columns: NDArray[np.int32], counts: NDArray[np.int64], computed: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The first tile of each computed row and, last, the number of tiles; the columns of the tiles."""
        width = self._tiles.dense_columns
        starts = np.concatenate([[0], np.cumsum(-(-counts[computed] // width))])
        tiles = np.full(starts[-1] * width, _NONE, np.int32)
        for i, start in zip(computed.tolist(), (starts * width).tolist(), strict=False):
            tiles[start : start + counts[i]] = columns[i, : counts[i]]
        return starts, tiles

    def _multiply(
        self, x: Tensor, weight: Tensor, tiles: NDArray[np.int32], rows: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """[tiles, columns]; tiles: [tiles · columns], rows: [tiles]."""
        count, width = len(rows), self._tiles.dense_columns
        splits = dense_splits(self._tiles, weight)
        places = upload(torch.from_numpy(np.concatenate([tiles, rows])), str(x.device))  # one copy
        out = torch.empty(count, width, device=x.device)
        parts = make_parts(out, splits)
        launch(
            matmul_device.chosen,
            (count, splits),
            *(x, weight, places[: count * width], places[count * width :], parts, weight.shape[1]),
            **dense_sizes(self._tiles, weight, half=self._half),
        )
        sum_parts(parts, out)
        # The only place where a step waits for the GPU.
        found: NDArray[np.float32] = out.cpu().numpy()
        return found


def set_bits(mask: NDArray[np.int32]) -> NDArray[np.intp]:
    """The numbers of the bits that are set in a mask [words], ascending; words that are 0 are not unpacked."""
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    place, bit = np.nonzero(bits)
    found: NDArray[np.intp] = 32 * words[place] + bit
    return found
