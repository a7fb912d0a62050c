"""Execute a step: build one ragged batch of the scheduled requests, run the model, and sample tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.engines.paged.clock import StepClock
from serving.engines.paged.head import Head
from serving.engines.paged.sampler import RunnerOutput, Sampler
from serving.engines.paged.scheduled_step import ScheduledRequest, SchedulerOutput
from serving.kernels.lora import LoraAdapter, LoraBatch, LoraSegment
from serving.layers.attention import AttentionMetadata
from serving.models.llama import LlamaForCausalLM

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


def lora_batch(scheduled: Sequence[ScheduledRequest]) -> LoraBatch | None:
    """The rows of the batch that use adapters; None if there are none."""
    segments: list[LoraSegment] = []
    stop = 0
    for item in scheduled:
        first, stop = stop, stop + item.num_tokens + len(item.draft_token_ids)
        lora = item.request.lora
        if lora is None:
            continue
        assert isinstance(lora, LoraAdapter), f"{item.request} has {type(lora)} as its adapter"
        if segments and segments[-1].stop == first and segments[-1].adapter is lora:
            first = segments.pop().first
        segments.append(LoraSegment(first, stop, lora))
    return LoraBatch(tuple(segments)) if segments else None


def _pad(rows: list[list[int]]) -> Ints:
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


class ModelRunner:
    """Executes steps on one device, and holds the KV cache's memory.

    Args:
        model: computes hidden states and logits.
        num_blocks: blocks in the KV cache.
        block_size: tokens in a block.
        device: torch's name of the model's device.
        clock: measures the parts of a step.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        *,
        num_blocks: int,
        block_size: int,
        device: str = "cpu",
        clock: StepClock | None = None,
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._device = device
        self._kv_caches = model.allocate_kv_caches(num_blocks, block_size)
        threading.Thread(target=model.populate, args=(self._kv_caches,), daemon=True).start()
        self._clock = clock or StepClock()
        self._head = Head(model, vocab_size=model.config.vocab_size, clock=self._clock)
        self._sampler = Sampler(vocab_size=model.config.vocab_size)

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """Execute a step, which also writes its keys and values to the cache; return the new tokens."""
        batch = build_batch(output.scheduled, self._block_size)
        with torch.inference_mode():
            hidden = self._forward(batch, lora_batch(output.scheduled))
            has_prompt = any(item.start < item.request.num_prompt_tokens for item in output.scheduled)
            self._clock.lap("prefill" if has_prompt else "decode")
            rows = self._head.logits(hidden, batch.logit_rows, output.scheduled)
        result = self._sampler.sample(rows, output.scheduled)
        self._clock.lap("sample")
        return result

    def _forward(self, batch: Batch, lora: LoraBatch | None) -> Tensor:
        metadata = AttentionMetadata(
            query_start=self._tensor(batch.query_start),
            context_lens=self._tensor(batch.context_lens),
            block_tables=self._tensor(batch.block_tables),
            slot_mapping=self._tensor(batch.slot_mapping),
        )
        return self._model.forward(
            self._tensor(batch.input_ids), self._tensor(batch.positions), self._kv_caches, metadata, lora
        )

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self._device)
