"""The tensors of a step on the model's device.

On a GPU they are parts of one array, so that a step has one copy to it, which the CPU does not wait for. A graph reads
always the same addresses, so its array is made once and filled for each step; what the batch does not fill is padding.

    inputs = PaddedInputs(rows=16, seqs=16, blocks=512, device="cuda")
    inputs.fill(batch)
    hidden = model.forward(inputs.input_ids, inputs.positions, kv_caches, inputs.metadata)
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from serving.engines.paged.step_batch import Batch, Ints
from serving.kernels.base import PADDING_SLOT, AttentionMetadata
from serving.kernels.upload import copy_to

_ALIGNMENT = 4  # of int32: kernels are compiled for addresses that are multiples of 16 bytes


class PaddedInputs:
    """Room for a batch, which it is filled with; the rest belongs to no request, and is stored nowhere.

    Args:
        rows: tokens.
        seqs: requests.
        blocks: of each request.
        device: torch's name of it.
    """

    def __init__(self, *, rows: int, seqs: int, blocks: int, device: str) -> None:
        self.rows, self.seqs, self.blocks = rows, seqs, blocks
        sizes = (rows, rows, rows, seqs + 1, seqs, seqs * blocks)
        self._starts = (0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        self._sizes = sizes
        self._array = torch.zeros(self._starts[-1], dtype=torch.int32, device=device)
        ids, positions, slots, query_start, contexts, tables = (self._part(self._array, i) for i in range(len(sizes)))
        slots.fill_(PADDING_SLOT)
        self.input_ids, self.positions = ids, positions
        self.metadata = AttentionMetadata(query_start, contexts, tables.view(seqs, blocks), slots)

    @classmethod
    def of(cls, batch: Batch, device: str) -> PaddedInputs:
        """A batch without padding."""
        seqs, blocks = batch.block_tables.shape
        inputs = cls(rows=len(batch.input_ids), seqs=seqs, blocks=blocks, device=device)
        inputs.fill(batch)
        return inputs

    def holds(self, batch: Batch) -> bool:
        """Whether there is room for a batch."""
        seqs, blocks = batch.block_tables.shape
        return len(batch.input_ids) <= self.rows and seqs <= self.seqs and blocks <= self.blocks

    def fill(self, batch: Batch) -> None:
        """Copy a batch for which there is room."""
        assert self.holds(batch), f"{batch} does not fit {self.rows} rows of {self.seqs} requests"
        copy_to(self._array, torch.from_numpy(self._padded(batch)))

    def _padded(self, batch: Batch) -> Ints:
        array = np.zeros(self._starts[-1], np.int32)
        ids, positions, slots, query_start, contexts, tables = (
            array[start : start + size] for start, size in zip(self._starts, self._sizes, strict=False)
        )
        rows, (seqs, blocks) = len(batch.input_ids), batch.block_tables.shape
        ids[:rows], positions[:rows] = batch.input_ids, batch.positions
        slots[:rows], slots[rows:] = batch.slot_mapping, PADDING_SLOT
        query_start[: seqs + 1], query_start[seqs + 1 :] = batch.query_start, rows
        contexts[:seqs] = batch.context_lens
        tables.reshape(self.seqs, self.blocks)[:seqs, :blocks] = batch.block_tables
        return array

    def _part(self, array: Tensor, index: int) -> Tensor:
        return array[self._starts[index] : self._starts[index] + self._sizes[index]]
