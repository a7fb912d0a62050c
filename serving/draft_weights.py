"""The file of a draft model, and the embedding that it shares with the large one.

Owns: `draft.model`, its tensors and what they must be. Knows nothing of what is computed with them. A draft
model is made for one checkpoint, by scripts/train_drafter: its vectors are projections of that embedding.

    weights = DraftWeights.load(Path("weights/honeycomb-nlq/draft.model"), embedding)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from serving.ngrams import refuse_others

# Beside the checkpoint. A safetensors file by another name: vLLM takes every *.safetensors for weights.
DRAFT_MODEL = "draft.model"

HEAD_DIM = 32
MAX_TOKENS = 512  # of a request that are read: prompt behind a mark, and answer
ROPE_THETA = 1000.0
EPS = 1e-5
_MAX_WIDTH = 4096  # more would be no small model any more
VECTOR_EPS = 1e-12  # small beside any embedding's mean square: only keeps 0 from becoming NaN

Array = NDArray[Any]


@dataclass(frozen=True)
class DraftLayer:
    """float16 but for the norms, which are float32."""

    input_norm: Array  # [size]
    qkv: Array  # [3 size, size]
    output: Array  # [size, size]
    post_attention_norm: Array  # [size]
    gate_up: Array  # [2 hidden, size]
    down: Array  # [size, hidden]


@dataclass(frozen=True)
class DraftWeights:
    """A draft model."""

    layers: tuple[DraftLayer, ...]
    embedding: Array  # [V, H] float16, float32, or bfloat16 as uint16
    project: Array  # [size, H] float16
    bias: Array  # [H] float16
    final_norm: Array  # [size] float32
    head: Array  # [size, size] float16
    marks: tuple[tuple[int, ...], ...]  # behind which a prompt is read: see `draft_text.read_parts`
    answer_tokens: tuple[int, ...]  # that may be drafted for any prompt
    always: dict[tuple[int, int], int]  # what follows two tokens of an answer, where that never differs

    @property
    def size(self) -> int:
        """Its width."""
        return int(self.project.shape[0])

    @property
    def hidden(self) -> int:
        """The width of its MLPs."""
        return int(self.layers[0].down.shape[1])

    @classmethod
    def load(cls, path: Path, embedding: Array) -> DraftWeights:
        """Read a draft model.

        Args:
            path: of its file.
            embedding: [V, H] of the checkpoint that it was made for; bfloat16 as its bits, uint16.

        Raises:
            WeightsError: the file is something else, or was made for an embedding of another shape.
        """
        with refuse_others(path):
            tensors = load_file(path)
            width, size = embedding.shape[1], len(tensors["final_norm"])
            num_layers = sum(name.endswith(".qkv") for name in tensors)
            if not num_layers or not _is_width(size):
                raise ValueError(f"{num_layers} layers of {size}")
            hidden = tensors["layers.0.down"].shape[1]
            layers = tuple(_layer(tensors, f"layers.{i}.", size, hidden) for i in range(num_layers))
            num_marks = max(1, sum(name.startswith("mark.") for name in tensors))
            marks = tuple(_ids(tensors[f"mark.{i}"], len(embedding)) for i in range(num_marks))
            answer_tokens = _ids(tensors["answer_tokens"], len(embedding))
            norm = _checked(tensors["final_norm"], size).astype(np.float32)
            bias, head = _checked(tensors["bias"], width), _checked(tensors["head"], size, size)
            return cls(
                layers=layers,
                embedding=embedding,
                project=_checked(tensors["project"], size, width),
                bias=bias,
                final_norm=norm,
                head=head,
                marks=marks,
                answer_tokens=answer_tokens,
                always=_trigrams(tensors["always"], len(embedding)),
            )


def _is_width(size: int) -> bool:
    return size % HEAD_DIM == 0 and 0 < size <= _MAX_WIDTH


def _layer(tensors: dict[str, Array], prefix: str, size: int, hidden: int) -> DraftLayer:
    if not _is_width(hidden):
        raise ValueError(f"an MLP of {hidden}")
    shapes = {
        "input_norm": (size,),
        "qkv": (3 * size, size),
        "output": (size, size),
        "post_attention_norm": (size,),
        "gate_up": (2 * hidden, size),
        "down": (size, hidden),
    }
    found = {name: _checked(tensors[prefix + name], *shape) for name, shape in shapes.items()}
    for name in ("input_norm", "post_attention_norm"):
        found[name] = found[name].astype(np.float32)
    return DraftLayer(**found)


def _checked(array: Array, *shape: int) -> Array:
    if array.shape != shape or array.dtype != np.float16:
        raise ValueError(f"{array.dtype} {array.shape} where float16 {shape} is expected")
    if not np.isfinite(array).all():
        raise ValueError("a weight that is no number")
    return array


def _ids(array: Array, vocab_size: int) -> tuple[int, ...]:
    if array.dtype != np.int32 or array.ndim != 1 or not array.size:
        raise ValueError(f"{array.dtype} {array.shape} where tokens are expected")
    if array.min() < 0 or array.max() >= vocab_size:
        raise ValueError("tokens that the checkpoint does not have")
    return tuple(array.tolist())


def _trigrams(array: Array, vocab_size: int) -> dict[tuple[int, int], int]:
    if array.ndim != 2 or array.shape[1] != 3:
        raise ValueError(f"{array.shape} where three tokens a row are expected")
    ids = _ids(array.ravel(), vocab_size) if array.size else ()
    return {(a, b): c for a, b, c in zip(ids[::3], ids[1::3], ids[2::3], strict=True)}
