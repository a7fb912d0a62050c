"""The ragged batch of a step, made of its scheduled requests, in memory of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.engines.paged.scheduled_step import ScheduledRequest

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
