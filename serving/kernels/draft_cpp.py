"""The draft model's C++ kernel: cpp/draft.h called through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.kernels.draft_base import (
    MAX_GENERATED,
    NUM_TOP,
    Cache,
    DraftKernel,
    Ints,
    TopTokens,
    rotary_tables,
)
from serving.kernels.memory import HUGE_PAGE, map_pages
from serving.weights.draft_weights import MAX_TOKENS, DraftLayer, DraftWeights

_LAST = ("final_norm", "head", "project", "bias")  # used after the layers, in this order
_SIZES = ("vocab", "width", "padded", "size", "hidden", "num_layers", "capacity")
_LINE = 64  # bytes of a cache line
_MULTIPLE = 32  # rows of weights are padded to a multiple of this
_DTYPES = {"float32": 0, "float16": 1, "uint16": 2}  # DType; uint16 holds the bits of bfloat16


class _CLayer(Structure):
    """The struct `DraftLayer` of cpp/draft.h, field by field."""

    _fields_ = tuple((name, c_void_p) for name in DraftLayer.__dataclass_fields__)


class _CModel(Structure):
    """The struct `DraftModel` of cpp/draft.h, field by field."""

    _fields_ = (
        ("embedding", c_void_p),
        ("dtype", c_int32),
        *((name, c_int64) for name in _SIZES),
        ("layers", POINTER(_CLayer)),
        *((name, c_void_p) for name in ("final_norm", "head", "project", "bias", "cos", "sin")),
        *((name, c_void_p) for name in ("vectors", "biases", "vector_index", "last_hidden", "trigrams")),
        ("num_trigrams", c_int64),
        ("num_vectors", c_int64),
    )


class _CStep(Structure):
    """The struct `DraftStep` of cpp/draft.h, field by field."""

    _fields_ = (
        ("ids", c_void_p),
        ("count", c_int64),
        ("start", c_int64),
        ("bidirectional", c_int64),
        ("kv", c_void_p),
        ("candidates", c_void_p),
        ("num_candidates", c_int64),
        ("allowed", c_void_p),
        ("top_tokens", c_void_p),
        ("top_probabilities", c_void_p),
        ("num_top", c_int64),
        ("min_confidence", c_float),
        ("max_generated", c_int64),
        ("generated", c_void_p),
        ("probabilities", c_void_p),
        ("num_generated", c_int64),
    )


class CppDraft(DraftKernel):
    """See `DraftKernel`; the weights are copied."""

    _cache_type = np.uint16  # the bits of bfloat16

    def __init__(self, weights: DraftWeights, library: Path) -> None:
        super().__init__(weights)
        vocab, width = weights.embedding.shape
        padded = -(-width // _MULTIPLE) * _MULTIPLE
        project = np.pad(weights.project, ((0, 0), (0, padded - width)))
        last = [weights.final_norm, weights.head, project, weights.bias]
        loaded = ctypes.PyDLL(str(library))
        self._memory, addresses = _prepare_weights(
            [*(array for layer in weights.layers for array in vars(layer).values()), *last], loaded
        )
        remaining = iter(addresses)
        self._layers = (_CLayer * len(weights.layers))(
            *(_CLayer(*(next(remaining) for _ in vars(layer))) for layer in weights.layers)
        )
        pointers = dict(zip(_LAST, remaining, strict=True))
        self._tables = dict(zip(("cos", "sin"), rotary_tables(), strict=True)) | {
            # Reserved for the whole vocabulary; memory pages are allocated as tokens first occur.
            "vectors": np.frombuffer(map_pages(vocab * weights.size * 4), np.float32),
            "biases": np.zeros(vocab, np.float32),
            "vector_index": np.zeros(vocab, np.int32),
            "last_hidden": np.zeros(weights.size, np.float32),
            "trigrams": np.array(sorted((*pair, third) for pair, third in weights.trigrams.items()), np.int32),
        }
        pointers |= {name: table.ctypes.data for name, table in self._tables.items()}
        sizes = (vocab, width, padded, weights.size, weights.hidden, len(weights.layers), MAX_TOKENS)
        dtype = _DTYPES[str(weights.embedding.dtype)]
        pointers["num_trigrams"] = len(weights.trigrams)
        self._model = _CModel(weights.embedding.ctypes.data, dtype, *sizes, self._layers, **pointers)
        self._ids = (c_int32 * MAX_TOKENS)()
        self._top_tokens, self._top_probabilities = (c_int32 * NUM_TOP)(), (c_float * NUM_TOP)()
        self._generated, self._probabilities = (c_int32 * MAX_GENERATED)(), (c_float * MAX_GENERATED)()
        self._cache: Cache | None = None  # the one of the last call
        self._candidates: Ints | None = None  # those of the last call
        buffers: dict[str, ctypes.Array[Any]] = {
            "ids": self._ids,
            "top_tokens": self._top_tokens,
            "top_probabilities": self._top_probabilities,
            "generated": self._generated,
            "probabilities": self._probabilities,
        }
        self._step = _CStep(**{name: ctypes.addressof(array) for name, array in buffers.items()})
        # PyDLL keeps the GIL: reacquiring it may take longer than most calls do.
        self._run = loaded.hk_draft
        self._run.argtypes = (POINTER(_CModel), POINTER(_CStep))
        self._run.restype = c_int32

    def run(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        allowed: Ints | None = None,
        *,
        bidirectional: bool = False,
    ) -> TopTokens:
        """See `DraftKernel`.

        Raises:
            IndexError: a token or a position is out of range.
            ValueError: `allowed` has fewer bits than the vocabulary has tokens.
        """
        if allowed is not None and len(allowed) * 32 < self._model.vocab:
            raise ValueError(f"allowed has {len(allowed) * 32} bits for {self._model.vocab} tokens")
        self._step.max_generated = 0
        self._step.allowed = None if allowed is None else allowed.ctypes.data
        return self._draft(cache, start, ids, candidates, bidirectional)

    def generate(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        *,
        max_tokens: int,
        min_confidence: float,
        bidirectional: bool = False,
    ) -> tuple[list[int], list[float], TopTokens]:
        """See `DraftKernel`.

        Raises:
            IndexError: a token or a position is out of range.
        """
        step = self._step
        step.max_generated, step.min_confidence, step.allowed = min(max_tokens, MAX_GENERATED), min_confidence, None
        top = self._draft(cache, start, ids, candidates, bidirectional)
        return self._generated[: step.num_generated], self._probabilities[: step.num_generated], top

    def _draft(self, cache: Cache, start: int, ids: Sequence[int], candidates: Ints, bidirectional: bool) -> TopTokens:
        step = self._step
        if cache is not self._cache:  # reading an array's address takes as long as a small matmul
            self._cache, step.kv = cache, cache.ctypes.data
        if candidates is not self._candidates:
            self._candidates, step.candidates = candidates, candidates.ctypes.data
            step.num_candidates = len(candidates)
        step.count, step.start, step.bidirectional = len(ids), start, bidirectional
        self._ids[: min(len(ids), MAX_TOKENS)] = list(ids[:MAX_TOKENS])
        step.num_top = NUM_TOP
        if not self._run(byref(self._model), byref(step)):
            raise IndexError(
                f"{len(ids)} tokens at position {start}: they exceed {MAX_TOKENS} positions, or a token or candidate "
                f"is not below {self._model.vocab}"
            )
        return self._top_tokens[: step.num_top], self._top_probabilities[: step.num_top]


def _prepare_weights(arrays: list[NDArray[Any]], library: ctypes.PyDLL) -> tuple[mmap, list[int]]:
    """Copy arrays into one piece of memory, matrices in the layout that C++ multiplies; also return their addresses.

    They are contiguous in the order of their use, because C++ prefetches at a fixed distance.
    """
    prepare = library.hk_prepare_draft
    prepare.argtypes, prepare.restype = (c_void_p, c_int64, c_int64, c_void_p), c_int64
    room = sum(a.nbytes + (68 * len(a) if a.ndim == 2 else 0) + _LINE for a in arrays)
    memory = map_pages(room + 2 * HUGE_PAGE)  # room for at least one whole huge page
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    address += -address % HUGE_PAGE
    addresses = []
    for array in map(np.ascontiguousarray, arrays):
        addresses.append(address)
        if array.ndim == 2:
            used = prepare(array.ctypes.data, *array.shape, address)
        else:
            used = array.nbytes
            ctypes.memmove(address, array.ctypes.data, used)
        address += -(-used // _LINE) * _LINE
    return memory, addresses
