"""A draft model in C++: cpp/draft.h through ctypes.

Owns: the structs of cpp/draft.h and the memory behind them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.draft_weights import MAX_TOKENS, DraftLayer, DraftWeights
from serving.kernels.draft_base import BEST, MOST_WRITTEN, Best, Cache, DraftKernelBase, Ints, rotary_tables
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
        *((name, c_void_p) for name in ("vectors", "biases", "places", "last", "always")),
        ("num_always", c_int64),
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
        ("sure", c_float),
        ("most", c_int64),
        ("written", c_void_p),
        ("shares", c_void_p),
        ("num_written", c_int64),
    )


class CppDraft(DraftKernelBase):
    """See `DraftKernel`."""

    def __init__(self, weights: DraftWeights, library: Path) -> None:
        super().__init__(weights)
        vocab, width = weights.embedding.shape
        padded = -(-width // _MULTIPLE) * _MULTIPLE
        project = np.pad(weights.project, ((0, 0), (0, padded - width)))
        last = [weights.final_norm, weights.head, project, weights.bias]
        loaded = ctypes.PyDLL(str(library))
        self._memory, addresses = _place(
            [*(array for layer in weights.layers for array in vars(layer).values()), *last], loaded
        )
        placed = iter(addresses)
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
            "always": np.array(sorted((*pair, third) for pair, third in weights.always.items()), np.int32),
        }
        pointers |= {name: table.ctypes.data for name, table in self._tables.items()}
        sizes = (vocab, width, padded, weights.size, weights.hidden, len(weights.layers), MAX_TOKENS)
        dtype = _DTYPES[str(weights.embedding.dtype)]
        pointers["num_always"] = len(weights.always)
        self._model = _CModel(weights.embedding.ctypes.data, dtype, *sizes, self._layers, **pointers)
        self._best, self._chances = (c_int32 * BEST)(), (c_float * BEST)()
        self._ids = (c_int32 * MAX_TOKENS)()
        self._cache: Cache | None = None  # of the last call
        self._candidates: Ints | None = None
        self._written, self._shares = (c_int32 * MOST_WRITTEN)(), (c_float * MOST_WRITTEN)()
        held: dict[str, ctypes.Array[Any]] = {"ids": self._ids, "best": self._best, "chances": self._chances}
        held |= {"written": self._written, "shares": self._shares}
        self._step = _CStep(**{name: ctypes.addressof(array) for name, array in held.items()})
        # PyDLL keeps the GIL: most calls are shorter than the wait for the GIL may be.
        self._run = loaded.hk_draft
        self._run.argtypes = (POINTER(_CModel), POINTER(_CStep))
        self._run.restype = c_int32

    def new_cache(self) -> Cache:
        """See `DraftKernel`."""
        return np.empty(self._cache_shape, np.uint16)

    def run(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        allowed: Ints | None = None,
        *,
        together: bool = False,
    ) -> Best:
        """See the protocol.

        Raises:
            IndexError: a token or a place is out of range.
            ValueError: `allowed` has not a bit for each token.
        """
        if allowed is not None and len(allowed) * 32 < self._model.vocab:
            raise ValueError(f"{len(allowed)} words of bits for {self._model.vocab} tokens")
        self._step.most = 0
        self._step.allowed = None if allowed is None else allowed.ctypes.data
        return self._draft(cache, start, ids, candidates, together)

    def write(
        self,
        cache: Cache,
        start: int,
        ids: Sequence[int],
        candidates: Ints,
        *,
        most: int,
        sure: float,
        together: bool = False,
    ) -> tuple[list[int], list[float], Best]:
        """See the protocol.

        Raises:
            IndexError: a token or a place is out of range.
        """
        step = self._step
        step.most, step.sure, step.allowed = min(most, MOST_WRITTEN), sure, None
        best = self._draft(cache, start, ids, candidates, together)
        return self._written[: step.num_written], self._shares[: step.num_written], best

    def _draft(self, cache: Cache, start: int, ids: Sequence[int], candidates: Ints, together: bool) -> Best:
        step = self._step
        if cache is not self._cache:  # asking for an address costs as much as a small product
            self._cache, step.kv = cache, cache.ctypes.data
        if candidates is not self._candidates:
            self._candidates, step.candidates = candidates, candidates.ctypes.data
            step.num_candidates = len(candidates)
        step.count, step.start, step.together = len(ids), start, together
        self._ids[: min(len(ids), MAX_TOKENS)] = list(ids[:MAX_TOKENS])
        step.num_best = BEST
        if not self._run(byref(self._model), byref(step)):
            raise IndexError(f"{len(ids)} tokens at {start}, or one of them, is out of a draft model's range")
        return self._best[: step.num_best], self._chances[: step.num_best]


def _place(arrays: list[NDArray[Any]], library: ctypes.PyDLL) -> tuple[mmap, list[int]]:
    """Memory with copies, one behind the other as C++ asks for the next ones ahead, and their addresses.

    Matrices are as C++ multiplies them.
    """
    prepare = library.hk_prepare_draft
    prepare.argtypes, prepare.restype = (c_void_p, c_int64, c_int64, c_void_p), c_int64
    room = sum(a.nbytes + (68 * len(a) if a.ndim == 2 else 0) + _LINE for a in arrays)
    memory = map_pages(room + 2 * HUGE_PAGE)  # at least one huge page, if there are any
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    place += -place % HUGE_PAGE
    addresses = []
    for array in map(np.ascontiguousarray, arrays):
        addresses.append(place)
        if array.ndim == 2:
            used = prepare(array.ctypes.data, *array.shape, place)
        else:
            used = array.nbytes
            ctypes.memmove(place, array.ctypes.data, used)
        place += -(-used // _LINE) * _LINE
    return memory, addresses
