"""Execute a step: build one ragged batch of the scheduled requests, run the model, and sample tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from serving.engines.paged.head import MAX_ALLOWED, Head
from serving.engines.paged.sampler import RunnerOutput, Sampler
from serving.engines.paged.step import ScheduledRequest, SchedulerOutput, StepClock
from serving.engines.paged.step_batch import Batch, PaddedInputs, build_batch
from serving.engines.paged.step_graphs import MAX_CONTEXT, Recorder, StepGraphs
from serving.kernels.base import AttentionMetadata
from serving.kernels.lora import LoraAdapter, LoraBatch, LoraSegment
from serving.models.llama import LlamaForCausalLM

_LOGIT_ROWS = 64  # whose logits a warm-up computes; more have the same kernels


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


class ModelRunner:
    """Executes steps on one device, and holds the KV cache's memory."""

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
        # No daemon: Python waits for it at exit, where a thread that still touches tensors could abort the process.
        threading.Thread(target=model.populate, args=(self._kv_caches,), name="populate").start()
        self._clock = clock or StepClock()
        self._head = Head(model, vocab_size=model.config.vocab_size, clock=self._clock)
        self._sampler = Sampler(vocab_size=model.config.vocab_size)
        self._graphs: StepGraphs | None = None

    def warm_up(self, sizes: Sequence[int], adapters: Sequence[LoraAdapter] = ()) -> None:
        """Run passes, all padding, so that the device's kernels are compiled.

        There is one of each size in rows, and one of one row with each adapter.
        """
        allowed = np.zeros((1, -(-self._model.config.vocab_size // 32)), np.int32)
        allowed[0, 0] = 0b11
        with torch.inference_mode():
            for rows in sizes:
                hidden = self._run(PaddedInputs(rows=rows, seqs=1, blocks=1, device=self._device))
                self._model.compute_logits(hidden[:_LOGIT_ROWS])  # a kernel for each tile, as in the pass
            for adapter in adapters:
                alone = LoraBatch((LoraSegment(0, 1, adapter),))
                self._run(PaddedInputs(rows=1, seqs=1, blocks=1, device=self._device), alone)
            first = torch.zeros(1, dtype=torch.int32)
            self._model.compute_allowed_logits(hidden, first, torch.from_numpy(allowed), MAX_ALLOWED)

    def record_graphs(
        self, recorder: Recorder, *, max_seqs: int, max_model_len: int, progress: Callable[[int, int], None]
    ) -> list[tuple[int, float]]:
        """Record the passes of steps with few rows, which are replayed from then on; see `StepGraphs.record`.

        The model's rotary tables must be complete to `max_model_len`, the tokens of a request.
        """
        graphs = StepGraphs(
            self._run,
            recorder,
            max_seqs=max_seqs,
            max_blocks=-(-min(max_model_len, MAX_CONTEXT) // self._block_size),
            device=self._device,
        )
        with torch.inference_mode():
            measured = graphs.record(progress)
        self._graphs = graphs
        return measured

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
        # The recordings have no adapters: a step with one is launched kernel by kernel.
        if self._graphs is not None and lora is None and (hidden := self._graphs.run(batch)) is not None:
            return hidden
        if self._device != "cpu":
            return self._run(PaddedInputs.of(batch, self._device), lora)
        metadata = AttentionMetadata(
            query_start=torch.from_numpy(batch.query_start),
            context_lens=torch.from_numpy(batch.context_lens),
            block_tables=torch.from_numpy(batch.block_tables),
            slot_mapping=torch.from_numpy(batch.slot_mapping),
        )
        ids, positions = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.positions)
        return self._model.forward(ids, positions, self._kv_caches, metadata, lora)

    def _run(self, inputs: PaddedInputs, lora: LoraBatch | None = None) -> Tensor:
        return self._model.forward(inputs.input_ids, inputs.positions, self._kv_caches, inputs.metadata, lora)
