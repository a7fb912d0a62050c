"""The sizes of a checkpoint, read from config.json and the headers of its safetensors files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from serving.errors import WeightsError
from serving.weights.draft_weights import DRAFT_MODEL
from serving.weights.safetensors_header import TensorEntry, read_safetensors_header

_PACKED = (".qweight", ".weight_packed")  # eight 4-bit weights in an int32


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that its memory and speed depend on.

    Args:
        name: of the folder.
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
        WeightsError: the folder has no checkpoint, or a field of config.json is missing or wrong.
    """
    config = _config(folder)
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
        max_context=_positive(config, "max_position_embeddings"),
        has_draft_model=(folder / DRAFT_MODEL).is_file(),
    )


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise WeightsError(f"{folder} does not exist; give the folder of a checkpoint")
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{folder} has no config.json; give the folder of a checkpoint")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {error}; give the folder of a checkpoint") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{path} holds a {type(config).__name__}, wanted an object")
    return config


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
