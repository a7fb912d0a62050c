"""Where the memory of a serving process goes, on a GPU with vLLM and on a CPU with the paged engine.

The constants of the paged engine's process were fitted to four models on one machine. docs/results/plan.json has the
errors of the fit, which are of the same four models, and what was measured of others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pipeline.plan.shape import ModelShape

MIB: Final = 1 << 20
GPU_SHARE: Final = 0.9  # of a card's memory that vLLM takes
_CUDA_CONTEXT: Final = 1024 * MIB  # context, graphs and fragmentation: 0.5 to 1.5 GB in practice
# The paged engine's process, measured (docs/results/plan.json): Python with torch and its libraries; tokenizer and
# grammar index, which grow with the vocabulary; and huge pages that a layer's cache only uses in part.
_CPU_PROCESS: Final = 285_000_000
_CPU_DRAFT_MODEL: Final = 40_000_000  # its weights, and the caches of requests and of prompts' beginnings
_CPU_BYTES_PER_TOKEN_OF_VOCABULARY: Final = 2_080
_CPU_KV_AT_START: Final = 512 * MIB
_HUGE_PAGE: Final = 2 * MIB


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by use."""

    weights: int
    adapters: int
    workspace: int
    process: int
    kv_per_token: int

    @property
    def fixed(self) -> int:
        """All that does not grow with the tokens in flight."""
        return self.weights + self.adapters + self.workspace + self.process

    def as_json(self) -> dict[str, int]:
        """With the sum."""
        return {**asdict(self), "fixed": self.fixed}


def adapter_bytes(shape: ModelShape, slots: int, rank: int) -> int:
    """vLLM's LoRA buffers: `slots` adapters of `rank` on every projection, 16 bits a value, used or not."""
    return slots * rank * shape.num_layers * shape.projection_widths * 2


def gpu_memory(
    shape: ModelShape, *, batched_tokens: int = 8192, max_num_seqs: int = 256, adapter_slots: int = 0, rank: int = 16
) -> Memory:
    """With vLLM; the KV cache is 16-bit."""
    rows = shape.hidden_size * 4 + (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    activations = batched_tokens * (rows + 2 * shape.intermediate_size) * 2
    logits = max_num_seqs * shape.vocab_size * 4
    adapters = adapter_bytes(shape, adapter_slots, rank) if adapter_slots else 0
    return Memory(shape.weight_bytes, adapters, activations + logits, _CUDA_CONTEXT, shape.kv_bytes_per_token())


def cpu_memory(shape: ModelShape, *, bfloat16_kv: bool, batched_tokens: int = 512) -> Memory:
    """With the paged engine.

    Args:
        bfloat16_kv: the processor multiplies bfloat16, to which keys and values are then rounded.
        batched_tokens: MAX_NUM_BATCHED_TOKENS.
    """
    heads = shape.num_heads + (shape.num_heads + 2 * shape.num_kv_heads)
    row = 3 * shape.hidden_size + heads * shape.head_dim + 3 * shape.intermediate_size
    process = _CPU_PROCESS + _CPU_BYTES_PER_TOKEN_OF_VOCABULARY * shape.vocab_size
    process += _CPU_DRAFT_MODEL if shape.has_draft_model else 0
    kv = shape.kv_bytes_per_token(2 if bfloat16_kv else 4)
    return Memory(shape.weight_bytes, 0, batched_tokens * row * 4, process, kv)


def cpu_resident(shape: ModelShape, memory: Memory, context: int, max_num_seqs: int = 32) -> int:
    """Resident bytes after the first requests: the engine takes up to 512 MiB of its KV blocks at once.

    Args:
        context: MAX_MODEL_LEN.
    """
    tokens = max(context, 768 * min(32, max_num_seqs))
    kv = min(tokens * memory.kv_per_token, _CPU_KV_AT_START)
    return memory.fixed + kv + shape.num_layers * _HUGE_PAGE


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16: with AMX or without."""
    return "avx512_bf16" in cpuinfo.read_text("utf-8", errors="replace") if cpuinfo.exists() else False
