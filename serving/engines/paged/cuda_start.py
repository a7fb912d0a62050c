"""What the engine does on a GPU before its first request: compile kernels, and record graphs."""

from __future__ import annotations

import sys
import time

import torch

from serving.config import Settings
from serving.drafting.speculative import MeasuredCost
from serving.engines.paged.kv_budget import CacheRoom
from serving.engines.paged.model_runner import ModelRunner
from serving.engines.paged.step_graphs import CudaRecorder
from serving.kernels.base import DecoderWeights
from serving.kernels.lora import LoraAdapter, LoraMatrices
from serving.kernels.shape_checks import DENSE_DTYPES
from serving.kernels.triton.tiles import ROW_TILES, ROWS
from serving.models.llama import LlamaForCausalLM

_TILES = tuple(ROWS * dots for dots in ROW_TILES)  # rows that have a tile of their own
_TIMES = 4  # how often a measured size counts


def prepare_cuda(
    settings: Settings, model: LlamaForCausalLM, runner: ModelRunner, room: CacheRoom, cost: MeasuredCost
) -> None:
    """Compile the kernels, record graphs unless COMPILE=off, which tells `cost` their times, and say so on stderr."""
    begun = time.monotonic()
    model.rotary.complete(room.max_model_len)
    adapters = blank_adapters(model.weights.decoder) if room.adapter_bytes else ()
    runner.warm_up((*_TILES, room.max_num_batched_tokens), adapters)
    _say(f"CUDA kernels are compiled ({time.monotonic() - begun:.1f} s)")
    if settings.compile == "off":
        return
    for rows, seconds in runner.record_graphs(
        CudaRecorder(),
        max_seqs=settings.max_num_seqs,
        max_model_len=room.max_model_len,
        progress=lambda done, total: _say(f"CUDA graphs: {done} of {total}"),
    ):
        for _ in range(_TIMES):
            cost.add(rows=rows, seconds=seconds)


def blank_adapters(weights: DecoderWeights) -> tuple[LoraAdapter, ...]:
    """One adapter of zeros for each type that the kernels are compiled for."""
    return tuple(
        LoraAdapter(
            tuple(
                tuple(
                    LoraMatrices(torch.zeros(1, inputs, dtype=dtype), torch.zeros(1, outputs, dtype=dtype), 1.0)
                    for inputs, outputs in weights.projections
                )
                for _ in weights.layers
            )
        )
        for dtype in DENSE_DTYPES
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
