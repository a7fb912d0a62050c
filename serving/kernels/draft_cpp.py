"""A draft model in C++: cpp/draft.h through ctypes.

Owns: the structs of cpp/draft.h and the memory behind them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.draft_weights import MAX_TOKENS, DraftLayer, DraftWeights
from serving.kernels.draft_base import BEST, DraftKernelBase, Floats, Ints, rotary_tables
from serving.kernels.memory import HUGE_PAGE, map_pages

_LAST = ("final_norm", "head", "project", "bias")  # in the order of their use, behind the layers
_SIZES = ("vocab", "width", "padded", "size", "hidden", "num_layers", "capacity")
_LINE = 64  # bytes of a cache line
_MULTIPLE = 32  # of it are all rows of weights
_DTYPES = {"float32": 0, "float16": 1, "uint16": 2}  # DType; bfloat16 comes as its bits


class _CLayer(Structure):
    """DraftLayer"""

    _fields_ = tuple((name, c_void_p) for name in DraftLayer.__dataclass_fields__)


class _CModel(Structure):
    """DraftModel"""

    _fields_ = (
        ("embedding", c_void_p),
        ("dtype", c_int32),
        *((name, c_int64) for name in _SIZES),
        ("layers", POINTER(_CLayer)),
        *((name, c_void_p) for name in ("final_norm", "head", "project", "bias", "cos", "sin")),
        *((name, c_void_p) for name in ("vectors", "biases", "places", "last")),
        ("known", c_int64),
    )


class _CStep(Structure):
    """DraftStep"""

    _fields_ = (
        ("ids", c_void_p),
        ("count", c_int64),
        ("start", c_int64),
        ("together", c_int64),
        ("kv", c_void_p),
        ("candidates", c_void_p),
        ("num_candidates", c_int64),
        ("allowed", c_void_p),
        ("best", c_void_p),
        ("chances", c_void_p),
        ("num_best", c_int64),
    )


class CppDraft(DraftKernelBase):
    """See `DraftKernel`."""

    def __init__(self, weights: DraftWeights, library: Path) -> None:
        super().__init__(weights)
        vocab, width = weights.embedding.shape
        padded = -(-width // _MULTIPLE) * _MULTIPLE
        project = np.pad(weights.project, ((0, 0), (0, padded - width)))
        last = [weights.final_norm, weights.head, project, weights.bias]
        self._placed = _place([*(a for layer in weights.layers for a in vars(layer).values()), *last])
        placed = iter([array.ctypes.data for array in self._placed])
        self._layers = (_CLayer * len(weights.layers))(
            *(_CLayer(*(next(placed) for _ in vars(layer))) for layer in weights.layers)
        )
        pointers = dict(zip(_LAST, placed, strict=True))
        self._tables = dict(zip(("cos", "sin"), rotary_tables(), strict=True)) | {
            # Reserved for all tokens; pages are taken as tokens are met.
            "vectors": np.frombuffer(map_pages(vocab * weights.size * 4), np.float32),
            "biases": np.zeros(vocab, np.float32),
            "places": np.zeros(vocab, np.int32),
            "last": np.zeros(weights.size, np.float32),
        }
        pointers |= {name: table.ctypes.data for name, table in self._tables.items()}
        sizes = (vocab, width, padded, weights.size, weights.hidden, len(weights.layers), MAX_TOKENS)
        dtype = _DTYPES[str(weights.embedding.dtype)]
        self._model = _CModel(weights.embedding.ctypes.data, dtype, *sizes, self._layers, **pointers)
        self._best, self._chances = (c_int32 * BEST)(), (c_float * BEST)()
        self._ids = (c_int32 * MAX_TOKENS)()
        self._cache: Floats | None = None  # of the last call
        self._candidates: Ints | None = None
        held: dict[str, ctypes.Array[Any]] = {"ids": self._ids, "best": self._best, "chances": self._chances}
        self._step = _CStep(**{name: ctypes.addressof(array) for name, array in held.items()})
        loaded = ctypes.PyDLL(str(library))
        loaded.hk_prepare_draft.argtypes = (c_void_p, c_int64)
        for array in self._placed[:-1]:  # but the bias
            if array.dtype == np.float16:
                loaded.hk_prepare_draft(array.ctypes.data, array.size)
        # PyDLL keeps the GIL: most calls are shorter than the wait for the GIL may be.
        self._run = loaded.hk_draft
        self._run.argtypes = (POINTER(_CModel), POINTER(_CStep))
        self._run.restype = c_int32

    def run(
        self,
        cache: Floats,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        allowed: Ints | None = None,
        *,
        together: bool = False,
    ) -> tuple[list[int], list[float]]:
        """See the protocol.

        Raises:
            IndexError: a token or a place is out of range.
            ValueError: `allowed` has not a bit for each token.
        """
        if allowed is not None and len(allowed) * 32 < self._model.vocab:
            raise ValueError(f"{len(allowed)} words of bits for {self._model.vocab} tokens")
        step = self._step
        if cache is not self._cache:  # asking for an address costs as much as a small product
            self._cache, step.kv = cache, cache.ctypes.data
        if candidates is not self._candidates:
            self._candidates, step.candidates = candidates, candidates.ctypes.data
            step.num_candidates = len(candidates)
        step.count, step.start, step.together = len(ids), start, together
        self._ids[: min(len(ids), MAX_TOKENS)] = list(ids[:MAX_TOKENS])
        step.allowed = None if allowed is None else allowed.ctypes.data
        step.num_best = BEST
        if not self._run(byref(self._model), byref(step)):
            raise IndexError(f"{len(ids)} tokens at {start}, or one of them, is out of a draft model's range")
        return self._best[: step.num_best], self._chances[: step.num_best]


def _place(arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Copies, one behind the other: C++ asks for the next ones ahead."""
    starts = np.cumsum([0] + [-(-array.nbytes // _LINE) * _LINE for array in arrays]).tolist()
    memory = np.frombuffer(
        map_pages(starts[-1] + 2 * HUGE_PAGE), np.uint8
    )  # at least one huge page, if there are any
    memory = memory[-memory.ctypes.data % HUGE_PAGE :]
    placed = []
    for start, array in zip(starts, arrays, strict=False):
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        placed.append(copy)
    return placed
