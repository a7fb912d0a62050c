"""The sizes of a checkpoint, and where the memory of a serving process goes: on a GPU with vLLM, on a CPU when paged.

Sizes are read from config.json and the headers of safetensors files. The constants of the paged engine's process were
fitted to four models on one machine. docs/results/plan.json has the errors of the fit, which are of the same four
models, and what was measured of others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from pipeline.weights.checkpoint_config import read_config_json
from serving.errors import WeightsError
from serving.models.config import context_length
from serving.weights.draft_weights import DRAFT_MODEL
from serving.weights.safetensors_header import TensorEntry, read_safetensors_header

_PACKED = (".qweight", ".weight_packed")  # eight 4-bit weights in an int32
MIB: Final = 1 << 20
GPU_SHARE: Final = 0.9  # of a card's memory that vLLM takes
MAX_NUM_SEQS: Final = 256  # vLLM's own, as is the next
_BATCHED_TOKENS: Final = 8192
_CUDA_CONTEXT: Final = 1024 * MIB  # context, graphs and fragmentation: 0.5 to 1.5 GB in practice
# The paged engine's process, measured (docs/results/plan.json): Python with torch and its libraries; tokenizer and
# grammar index, which grow with the vocabulary; and huge pages that a layer's cache only uses in part.
_CPU_PROCESS: Final = 285_000_000
_CPU_DRAFT_MODEL: Final = 40_000_000  # its weights, and the caches of requests and of prompts' beginnings
_CPU_BYTES_PER_TOKEN_OF_VOCABULARY: Final = 2_080
_CPU_SCREEN: Final = 0.6  # bytes a weight of the head, for its 4-bit copy
_CPU_KV_AT_START: Final = 512 * MIB
_CPU_BATCHED_TOKENS: Final = 512  # the default of MAX_NUM_BATCHED_TOKENS
_CPU_TOKENS_AT_START: Final = 768 * 32  # of MAX_NUM_SEQS requests
_HUGE_PAGE: Final = 2 * MIB


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that its memory and speed depend on.

    Args:
        name: the folder's name.
        weight_bytes: exact size of all tensors.
        streamed_bytes: weight bytes that every decoding step reads: all except the embedding, which counts only if
            the head is tied to it.
        num_parameters: number of weights; a 4-bit weight counts as one.
        has_draft_model: whether the paged engine drafts with a model of its own.
    """

    name: str
    weight_bytes: int
    streamed_bytes: int
    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    has_draft_model: bool = False

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value

    @property
    def projection_widths(self) -> int:
        """Sum of inputs + outputs over one layer's seven projections; LoRA's matrices are proportional to it."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner)


def read_shape(folder: Path) -> ModelShape:
    """Read a checkpoint's sizes; no tensor data is read.

    Raises:
        CheckpointError: the folder has no config.json.
        WeightsError: it has no tensors, or a field of config.json is missing or wrong.
    """
    config = read_config_json(folder)
    tensors: dict[str, TensorEntry] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_safetensors_header(path).tensors
    if not tensors:
        raise WeightsError(f"{folder} has no *.safetensors file; give the folder of a checkpoint")
    total = sum(entry.end - entry.begin for entry in tensors.values())
    embedding, head = (_bytes(tensors.get(name)) for name in ("model.embed_tokens.weight", "lm_head.weight"))
    streamed = total - (embedding if head else 0)
    heads, hidden = _positive(config, "num_attention_heads"), _positive(config, "hidden_size")
    return ModelShape(
        name=folder.resolve().name,
        weight_bytes=total,
        streamed_bytes=streamed,
        num_parameters=sum(map(_count, tensors, tensors.values())),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_positive(config, "num_key_value_heads", heads),
        head_dim=_positive(config, "head_dim", hidden // heads),
        hidden_size=hidden,
        intermediate_size=_positive(config, "intermediate_size"),
        vocab_size=_positive(config, "vocab_size"),
        max_context=context_length(config),
        has_draft_model=(folder / DRAFT_MODEL).is_file(),
    )


def _positive(config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or value <= 0:
        raise WeightsError(f"config.json has {name} = {value!r}, wanted a whole number above 0")
    return value


def _bytes(entry: TensorEntry | None) -> int:
    return 0 if entry is None else entry.end - entry.begin


def _count(name: str, entry: TensorEntry) -> int:
    """Number of weights in a tensor: an int32 of AWQ has eight; its scales and zero points count as none."""
    if name.endswith((".qzeros", ".scales", ".weight_zero_point", ".weight_scale", ".weight_shape")):
        return 0
    return prod(entry.shape) * (8 if name.endswith(_PACKED) else 1)


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes of a serving process by use."""

    weights: int
    adapters: int
    workspace: int
    process: int
    kv_per_token: int

    @property
    def fixed(self) -> int:
        """The bytes that do not grow with the tokens in flight."""
        return self.weights + self.adapters + self.workspace + self.process

    def as_json(self) -> dict[str, int]:
        """The bytes by use, and their sum."""
        return {**asdict(self), "fixed": self.fixed}


def adapter_bytes(shape: ModelShape, slots: int, rank: int) -> int:
    """vLLM's LoRA buffers: `slots` adapters of `rank` on every projection, 16 bits a value, used or not."""
    return slots * rank * shape.num_layers * shape.projection_widths * 2


def gpu_memory(shape: ModelShape, *, adapter_slots: int = 0, rank: int = 16) -> Memory:
    """The memory of a process with vLLM, whose KV cache is 16-bit."""
    rows = shape.hidden_size * 4 + (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    activations = _BATCHED_TOKENS * (rows + 2 * shape.intermediate_size) * 2
    logits = MAX_NUM_SEQS * shape.vocab_size * 4
    adapters = adapter_bytes(shape, adapter_slots, rank) if adapter_slots else 0
    return Memory(shape.weight_bytes, adapters, activations + logits, _CUDA_CONTEXT, shape.kv_bytes_per_token())


def cpu_memory(shape: ModelShape, *, bfloat16_kv: bool) -> Memory:
    """The memory of a process with the paged engine.

    Args:
        bfloat16_kv: the processor multiplies bfloat16, to which keys and values are then rounded.
    """
    heads = shape.num_heads + (shape.num_heads + 2 * shape.num_kv_heads)
    row = 3 * shape.hidden_size + heads * shape.head_dim + 3 * shape.intermediate_size
    process = _CPU_PROCESS + _CPU_BYTES_PER_TOKEN_OF_VOCABULARY * shape.vocab_size
    process += _CPU_DRAFT_MODEL if shape.has_draft_model else 0
    process += int(_CPU_SCREEN * shape.vocab_size * shape.hidden_size)
    kv = shape.kv_bytes_per_token(2 if bfloat16_kv else 4)
    return Memory(shape.weight_bytes, 0, _CPU_BATCHED_TOKENS * row * 4, process, kv)


def cpu_resident(shape: ModelShape, memory: Memory, context: int) -> int:
    """Resident bytes after the first requests: the engine takes up to 512 MiB of its KV blocks at once.

    Args:
        context: MAX_MODEL_LEN.
    """
    kv = min(max(context, _CPU_TOKENS_AT_START) * memory.kv_per_token, _CPU_KV_AT_START)
    return memory.fixed + kv + shape.num_layers * _HUGE_PAGE


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16: with AMX or without."""
    cpuinfo = Path("/proc/cpuinfo")
    return "avx512_bf16" in cpuinfo.read_text("utf-8", errors="replace") if cpuinfo.exists() else False
