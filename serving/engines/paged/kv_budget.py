"""How many blocks the KV cache has: on a GPU as many as its free memory holds, on a CPU as many as are usually needed.

blocks = choose_num_blocks(settings, model, room, device)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from serving.adapters.registry import DEFAULT_MAX_RANK
from serving.config import Settings
from serving.engines.paged.options import default_num_blocks
from serving.errors import SettingError
from serving.kernels.select import Device
from serving.kernels.triton.tiles import MAX_PART_BYTES, TileSizes
from serving.models.config import ModelConfig
from serving.models.llama import LlamaForCausalLM

_GIB: Final = 1 << 30
_ATTENTION_PARTS: Final = MAX_PART_BYTES  # bytes of the parts of one layer's attention
_GRAPHS: Final = 256 << 20  # the graphs' own memory, and what the allocator cannot use; an estimate
_GRAPH_ROWS: Final = 64  # rows of the largest recorded pass


def cuda_memory() -> tuple[int, int]:
    """Bytes of the GPU that are free now, and all; what torch has kept from freed tensors counts as free."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return free, total


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """What the cache is for.

    Args:
        block_size: tokens of a block.
        max_model_len: tokens of a request at most.
        max_num_batched_tokens: rows of the largest step, all of which may need logits of the whole vocabulary.
        adapter_bytes: the bytes of all loaded adapters; 0 if requests may name none.
    """

    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    adapter_bytes: int = 0


def choose_num_blocks(
    settings: Settings,
    model: LlamaForCausalLM,
    room: CacheRoom,
    device: Device,
    memory: Callable[[], tuple[int, int]] = cuda_memory,
) -> int:
    """NUM_BLOCKS if that is set; on a GPU as many as fit beside what is in use, by other processes too, and a step.

    Raises:
        SettingError: not even one request fits the GPU.
    """
    if settings.num_blocks is not None:
        return settings.num_blocks
    if device is not Device.CUDA:
        return default_num_blocks(room.max_model_len, max_num_seqs=settings.max_num_seqs, block_size=room.block_size)
    block_bytes = sum(cache.nbytes for cache in model.allocate_kv_caches(1, room.block_size))
    utilization, (free, total) = settings.gpu_memory_utilization, memory()
    used, kept = total - free, step_bytes(model.config, room)
    blocks = max(0, int(total * utilization) - used - kept) // block_bytes
    needed = -(-room.max_model_len // room.block_size)
    if blocks < needed:
        and_adapters = " and adapters need" if room.adapter_bytes else " needs"
        lower = f"MAX_MODEL_LEN{', ADAPTER_MEMORY_MB' if room.adapter_bytes else ''} or MAX_NUM_BATCHED_TOKENS"
        raise SettingError(
            f"GPU_MEMORY_UTILIZATION={utilization:g} of {total / _GIB:.1f} GiB: {used / _GIB:.1f} are in use and a "
            f"step{and_adapters} {kept / _GIB:.1f}, which leaves {blocks} KV blocks of {block_bytes:,} bytes; one "
            f"request of MAX_MODEL_LEN={room.max_model_len} needs {needed}. Lower {lower}, raise "
            "GPU_MEMORY_UTILIZATION, or end other processes on this GPU"
        )
    return blocks


def step_bytes(config: ModelConfig, room: CacheRoom) -> int:
    """Memory beside weights and cache, from above: tensors that exist at once in a step, graphs, and adapters."""
    shape, hidden, inner = config.attention, config.hidden_size, config.intermediate_size
    queries = shape.num_heads * shape.head_dim
    qkv, rows = queries + 2 * shape.num_kv_heads * shape.head_dim, room.max_num_batched_tokens
    # The residual, its norm, what attention and the activation give, and the parts of two matmuls at once.
    row = 4 * (2 * hidden + queries + inner + max(_with_parts(qkv), _with_parts(2 * inner)) + _with_parts(hidden))
    logits = 4 * rows * _with_parts(config.vocab_size)
    adapters = room.adapter_bytes
    if adapters:  # and the sums between their two products
        splits = -(-max(hidden, inner, queries) // TileSizes().adapter_inputs)
        adapters += 4 * rows * 3 * splits * DEFAULT_MAX_RANK
    return (rows + _GRAPH_ROWS) * row + logits + adapters + _ATTENTION_PARTS + _GRAPHS


def _with_parts(outputs: int) -> int:
    """Numbers of a row of a product, and of its parts from above: if a program had the more outputs of both kinds."""
    tiles = TileSizes()
    return outputs * (1 + -(-tiles.programs // -(-outputs // max(tiles.columns, tiles.dense_columns))))
