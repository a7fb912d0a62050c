"""Read and check the file of a draft model.

scripts/train_drafter makes a draft model for one checkpoint: its token vectors are projections of the checkpoint's
embedding, which is therefore not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from serving.errors import WeightsError


@contextmanager
def as_weights_error(path: Path) -> Iterator[None]:
    """Turn any error while reading a file of the drafter into a WeightsError that names the file."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is not a valid drafter file: {error}; build the weights again") from error


# A safetensors file under another name, because vLLM loads every *.safetensors in the folder as weights.
DRAFT_MODEL = "draft.model"

HEAD_DIM = 32
MAX_TOKENS = 512  # tokens of a request that the draft model reads: the prompt from a marker on, and the answer
ROPE_THETA = 1000.0
EPS = 1e-5
_MAX_WIDTH = 4096  # a wider model would be too slow for drafts
VECTOR_EPS = 1e-12  # far below any embedding's mean square: only avoids NaN for a vector of zeros

Array = NDArray[Any]


@dataclass(frozen=True)
class DraftLayer:
    """One layer: matrices are float16, norms float32."""

    input_norm: Array  # [size]
    qkv: Array  # [3 size, size]
    output: Array  # [size, size]
    post_attention_norm: Array  # [size]
    gate_up: Array  # [2 hidden, size]
    down: Array  # [size, hidden]


@dataclass(frozen=True)
class DraftWeights:
    """The weights of a draft model; `load` reads them."""

    layers: tuple[DraftLayer, ...]
    embedding: Array  # [V, H] float16, float32, or bfloat16 as uint16
    project: Array  # [size, H] float16
    bias: Array  # [H] float16
    final_norm: Array  # [size] float32
    head: Array  # [size, size] float16
    markers: tuple[tuple[int, ...], ...]  # token sequences after which a prompt is read: see `split_prompt`
    answer_tokens: tuple[int, ...]  # may be drafted for any prompt
    trigrams: dict[tuple[int, int], int]  # the token that always follows two tokens of an answer

    @property
    def size(self) -> int:
        """Width of the hidden states."""
        return int(self.project.shape[0])

    @property
    def hidden(self) -> int:
        """Width of the MLPs."""
        return int(self.layers[0].down.shape[1])

    @property
    def nbytes(self) -> int:
        """The memory of all arrays in bytes, without the embedding."""
        layers = [array for layer in self.layers for array in vars(layer).values()]
        return sum(array.nbytes for array in (*layers, self.project, self.bias, self.final_norm, self.head))

    @classmethod
    def load(cls, path: Path, embedding: Array) -> DraftWeights:
        """Read a draft model.

        `embedding` is [V, H] of its checkpoint; bfloat16 is passed as its bits in uint16.

        Raises:
            WeightsError: the file is not a draft model, or belongs to an embedding of another shape.
        """
        with as_weights_error(path):
            tensors = load_file(path)
            width, size = embedding.shape[1], len(tensors["final_norm"])
            num_layers = sum(name.endswith(".qkv") for name in tensors)
            if not num_layers or not _is_width(size):
                raise ValueError(
                    f"{num_layers} layers of width {size}: there must be at least one, and the width a multiple of "
                    f"{HEAD_DIM} up to {_MAX_WIDTH}"
                )
            hidden = tensors["layers.0.down"].shape[1]
            layers = tuple(_layer(tensors, f"layers.{i}.", size, hidden) for i in range(num_layers))
            num_markers = max(1, sum(name.startswith("mark.") for name in tensors))
            markers = tuple(_ids(tensors[f"mark.{i}"], len(embedding)) for i in range(num_markers))
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
                markers=markers,
                answer_tokens=answer_tokens,
                trigrams=_trigrams(tensors["always"], len(embedding)),
            )


def _is_width(size: int) -> bool:
    return size % HEAD_DIM == 0 and 0 < size <= _MAX_WIDTH


def _layer(tensors: dict[str, Array], prefix: str, size: int, hidden: int) -> DraftLayer:
    if not _is_width(hidden):
        raise ValueError(f"an MLP of width {hidden}, not a multiple of {HEAD_DIM} up to {_MAX_WIDTH}")
    shapes = {
        "input_norm": (size,),
        "qkv": (3 * size, size),
        "output": (size, size),
        "post_attention_norm": (size,),
        "gate_up": (2 * hidden, size),
        "down": (size, hidden),
    }
    arrays = {name: _checked(tensors[prefix + name], *shape) for name, shape in shapes.items()}
    for name in ("input_norm", "post_attention_norm"):
        arrays[name] = arrays[name].astype(np.float32)
    return DraftLayer(**arrays)


def _checked(array: Array, *shape: int) -> Array:
    if array.shape != shape or array.dtype != np.float16:
        raise ValueError(f"{array.dtype} {array.shape} where float16 {shape} is expected")
    if not np.isfinite(array).all():
        raise ValueError("a weight is NaN or infinite")
    return array


def _ids(array: Array, vocab_size: int) -> tuple[int, ...]:
    if array.dtype != np.int32 or array.ndim != 1 or not array.size:
        raise ValueError(f"{array.dtype} {array.shape} where int32 token ids are expected")
    if array.min() < 0 or array.max() >= vocab_size:
        raise ValueError(f"token ids outside 0 … {vocab_size - 1}")
    return tuple(array.tolist())


def _trigrams(array: Array, vocab_size: int) -> dict[tuple[int, int], int]:
    if array.ndim != 2 or array.shape[1] != 3:
        raise ValueError(f"shape {array.shape} where [n, 3] is expected")
    ids = _ids(array.ravel(), vocab_size) if array.size else ()
    return {(a, b): c for a, b, c in zip(ids[::3], ids[1::3], ids[2::3], strict=True)}
