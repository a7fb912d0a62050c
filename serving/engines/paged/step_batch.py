"""The inputs of the model in a step: the ragged batch of its requests in arrays of the CPU, and their tensors on a GPU.

batch = build_batch(output.scheduled, block_size=16)
inputs = PaddedInputs(rows=16, seqs=16, blocks=512, device="cuda")
inputs.fill(batch)
hidden = model.forward(inputs.input_ids, inputs.positions, kv_caches, inputs.metadata)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.engines.paged.step import ScheduledRequest
from serving.kernels.base import PADDING_SLOT, AttentionMetadata
from serving.kernels.upload import copy_to

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """The model's inputs in one step."""

    input_ids: Ints  # [num_tokens]
    positions: Ints  # [num_tokens]
    query_start: Ints  # [num_seqs + 1]
    context_lens: Ints  # [num_seqs]
    block_tables: Ints  # [num_seqs, max_blocks]
    slot_mapping: Ints  # [num_tokens]
    logit_rows: Ints  # rows whose logits are needed


def build_batch(scheduled: Sequence[ScheduledRequest], block_size: int) -> Batch:
    """Concatenate the tokens of the scheduled requests into one batch."""
    input_ids: list[int] = []
    for item in scheduled:
        input_ids += item.request.token_ids[item.start : item.end]
        input_ids += item.draft_token_ids
    starts = np.array([item.start for item in scheduled], np.int32)
    counts = np.array([item.num_tokens + len(item.draft_token_ids) for item in scheduled], np.int32)
    query_start = np.zeros(len(scheduled) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    sequence = np.repeat(np.arange(len(scheduled), dtype=np.int32), counts)
    positions = np.arange(len(input_ids), dtype=np.int32) + (starts - query_start[:-1])[sequence]
    block_tables = _pad([item.request.block_ids for item in scheduled])
    slots = block_tables[sequence, positions // block_size] * np.int32(block_size) + positions % block_size
    sampled = np.array([1 + len(i.draft_token_ids) if i.samples else 0 for i in scheduled], np.int32)
    needs_logits = positions >= (starts + counts - sampled)[sequence]
    return Batch(
        input_ids=np.array(input_ids, np.int32),
        positions=positions,
        query_start=query_start,
        context_lens=starts + counts,
        block_tables=block_tables,
        slot_mapping=slots.astype(np.int32, copy=False),
        logit_rows=np.flatnonzero(needs_logits).astype(np.int32),
    )


def _pad(rows: list[list[int]]) -> Ints:
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


_ALIGNMENT = 4  # numbers of int32: kernels are compiled for addresses that are multiples of 16 bytes


class PaddedInputs:
    """Tensors on the model's device with room for a batch; the rest is padding, which is stored nowhere.

    On a GPU they are parts of one array, so that a step has one copy to it, which the CPU does not wait for. A graph
    always reads the same addresses, so its array is made once and filled for each step.

    Args:
        rows: number of tokens.
        seqs: number of requests.
        blocks: number of blocks of each request.
        device: torch's name of the device.
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
