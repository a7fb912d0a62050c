"""Call the compiled C++ kernels through ctypes, which releases the GIL during a call.

library = CpuLibrary(path, num_threads=2)
library.call("hk_awq_gemm", byref(weight), x.data_ptr(), rows, out.data_ptr())
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from serving.kernels.cpu_lora import CLoraBatch, CLoraSite
from serving.kernels.shape_checks import KernelArgumentError
from serving.kernels.structs import (
    CAwq,
    CBatch,
    CDecoder,
    CDense,
    CMaskedProducts,
    CPass,
    CQkvAdjustment,
    CScreen,
    CShape,
)

_P, _I, _L = c_void_p, c_int32, c_int64
# Signatures of cpp/cpu.cpp without the first argument, the pool. Checked functions return 0 for an index out of range.
_VOID: dict[str, tuple[Any, ...]] = {
    "hk_add_rms_norm": (_P, _P, _P, c_float, _L, _L, _P),
    "hk_adjust_qkv": (_P, _L, POINTER(CQkvAdjustment), POINTER(CShape)),
    "hk_silu_and_mul": (_P, _L, _L, _P),
    "hk_pack_awq": (_P, _P, _P, POINTER(CAwq)),
    "hk_awq_gemm": (POINTER(CAwq), _P, _L, _P),
    "hk_dense_gemm": (POINTER(CDense), _P, _L, _P, _L),
    "hk_pack_screen": (POINTER(CDense), POINTER(CScreen)),
    "hk_add_lora": (POINTER(CLoraBatch), POINTER(CLoraSite), _P, _P),
}
_CHECKED: dict[str, tuple[Any, ...]] = {
    "hk_embedding": (_P, _P, _I, _L, _L, _L, _P),
    "hk_rotary_and_store_kv": (_P, _P, _P, _P, _L, _L, _P, POINTER(CShape), _L),
    "hk_paged_attention": (_P, _P, POINTER(CBatch), POINTER(CShape), _P),
    "hk_masked_products": (POINTER(CDense), _P, _L, POINTER(CMaskedProducts)),
    "hk_narrow": (POINTER(CDense), POINTER(CScreen), _P, _L, _P, _P),
    "hk_decode": (POINTER(CDecoder), POINTER(CPass)),
}


class CpuLibrary:
    """The library and its thread pool; calls from several threads wait for each other.

    Attributes:
        vector_width: floats in a vector of the CPU that the kernels use, 8 or 16.
        has_tiles: whether matmuls with int16 inputs run on AMX tiles.
        has_bfloat16: whether matmuls with bfloat16 inputs run on AMX tiles.
        has_dots: whether attention runs on dot products of bfloat16 beside matmuls with int8 inputs.
    """

    def __init__(self, path: Path, num_threads: int) -> None:
        self._library = ctypes.CDLL(str(path))
        self._functions = {name: self._function(name, None, types) for name, types in _VOID.items()}
        self._checked = {name: self._function(name, c_int32, types) for name, types in _CHECKED.items()}
        self._library.hk_pool_create.restype = c_void_p
        self._library.hk_pool_destroy.argtypes = (c_void_p,)
        self._library.hk_cache_uses_tiles.argtypes = (POINTER(CShape), c_int64)
        self._library.hk_workspace_floats.argtypes = (POINTER(CDecoder), c_int64)
        self._library.hk_workspace_floats.restype = c_int64
        self._library.hk_touch.argtypes = (c_void_p, c_int64)
        self._library.hk_touch.restype = None
        self.num_threads = num_threads
        self.vector_width = int(self._library.hk_vector_width())
        self.has_tiles = bool(self._library.hk_has_tiles())
        self.has_bfloat16 = bool(self._library.hk_has_bfloat16())
        self.has_dots = bool(self._library.hk_has_dots())
        self._pool = c_void_p(self._library.hk_pool_create(c_int32(num_threads)))
        finalizer = weakref.finalize(self, self._library.hk_pool_destroy, self._pool)
        # Not when the interpreter exits: a thread may still call kernels then, and would crash. The process's end frees
        # everything.
        finalizer.atexit = False

    def _function(self, name: str, result: Any, types: tuple[Any, ...]) -> Any:
        function = getattr(self._library, name)
        function.argtypes = (c_void_p, *types)
        function.restype = result
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Run one kernel."""
        self._functions[name](self._pool, *arguments)

    def call_checked(self, name: str, what: str, *arguments: Any) -> None:
        """Run one kernel that takes indices, described by `what` in the error.

        Raises:
            KernelArgumentError: an index is out of range; nothing was written.
        """
        if not self._checked[name](self._pool, *arguments):
            raise KernelArgumentError(f"{what} out of range in {name}")

    def touch(self, address: int, size: int) -> None:
        """Have the system allocate the pages of `size` bytes, whose values stay; other threads may use them."""
        self._library.hk_touch(address, size)

    def workspace_floats(self, decoder: CDecoder, tokens: int) -> int:
        """Size of the workspace that hk_decode needs, in floats."""
        return int(self._library.hk_workspace_floats(ctypes.byref(decoder), tokens))

    def cache_uses_tiles(self, shape: CShape, block_size: int) -> bool:
        """Whether a KV cache with this block size holds bfloat16 tiles; otherwise it holds float32."""
        return bool(self._library.hk_cache_uses_tiles(ctypes.byref(shape), block_size))
