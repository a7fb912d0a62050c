"""The compiled C++ kernels as Python calls.

Owns: the signatures of cpp/cpu.cpp and the pool of threads. ctypes gives up the GIL during a call.

    library = CpuLibrary(path, num_threads=2)
    library.call("hk_awq_gemm", byref(weight), x.data_ptr(), rows, out.data_ptr())
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from serving.kernels.checks import KernelArgumentError
from serving.kernels.structs import CAwq, CBatch, CChosen, CDecoder, CDense, CPass, CShape

_P, _I, _L = c_void_p, c_int32, c_int64
# After the pool, which is every kernel's first argument. "checked" ones return 0 for an index out of range.
_VOID: dict[str, tuple[Any, ...]] = {
    "hk_add_rms_norm": (_P, _P, _P, c_float, _L, _L, _P),
    "hk_silu_and_mul": (_P, _L, _L, _P),
    "hk_pack_awq": (_P, _P, _P, POINTER(CAwq)),
    "hk_awq_gemm": (POINTER(CAwq), _P, _L, _P),
    "hk_dense_gemm": (POINTER(CDense), _P, _L, _P, _L),
}
_CHECKED: dict[str, tuple[Any, ...]] = {
    "hk_embedding": (_P, _P, _I, _L, _L, _L, _P),
    "hk_rotary_and_store_kv": (_P, _P, _P, _P, _L, _L, _P, POINTER(CShape), _L),
    "hk_paged_attention": (_P, _P, POINTER(CBatch), POINTER(CShape), _P),
    "hk_chosen_products": (POINTER(CDense), _P, _L, POINTER(CChosen)),
    "hk_decode": (POINTER(CDecoder), POINTER(CPass)),
}


class CpuLibrary:
    """One pool of threads; calls from several threads wait for each other."""

    def __init__(self, path: Path, num_threads: int) -> None:
        self._library = ctypes.CDLL(str(path))
        self._functions = {name: self._function(name, None, types) for name, types in _VOID.items()}
        self._checked = {name: self._function(name, c_int32, types) for name, types in _CHECKED.items()}
        self._library.hk_pool_create.restype = c_void_p
        self._library.hk_pool_destroy.argtypes = (c_void_p,)
        self._library.hk_kept_in_tiles.argtypes = (POINTER(CShape), c_int64)
        self._library.hk_workspace_floats.argtypes = (POINTER(CDecoder), c_int64)
        self._library.hk_workspace_floats.restype = c_int64
        self.num_threads = num_threads
        self.vector_width = int(self._library.hk_vector_width())
        self.has_tiles = bool(self._library.hk_has_tiles())
        self.has_bfloat16 = bool(self._library.hk_has_bfloat16())
        self._pool = c_void_p(self._library.hk_pool_create(c_int32(num_threads)))
        weakref.finalize(self, self._library.hk_pool_destroy, self._pool)

    def _function(self, name: str, result: Any, types: tuple[Any, ...]) -> Any:
        function = getattr(self._library, name)
        function.argtypes = (c_void_p, *types)
        function.restype = result
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Run one kernel."""
        self._functions[name](self._pool, *arguments)

    def call_checked(self, name: str, what: str, *arguments: Any) -> None:
        """Run one kernel that takes indices.

        Raises:
            KernelArgumentError: an index of `what` points outside; nothing was written.
        """
        if not self._checked[name](self._pool, *arguments):
            raise KernelArgumentError(f"{what} out of range in {name}")

    def workspace_floats(self, decoder: CDecoder, tokens: int) -> int:
        """Room that hk_decode needs."""
        return int(self._library.hk_workspace_floats(ctypes.byref(decoder), tokens))

    def keeps_tiles(self, shape: CShape, block_size: int) -> bool:
        """Whether KV caches of such blocks hold bfloat16, laid out as tiles; otherwise float32."""
        return bool(self._library.hk_kept_in_tiles(ctypes.byref(shape), block_size))
