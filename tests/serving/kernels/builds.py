"""The builds of the C++ kernels that this machine can run: its own, and those for older processors."""

from __future__ import annotations

import platform
import zlib
from pathlib import Path

import pytest

from serving.kernels.build import build_library, find_compiler

needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="no C++ compiler here: the torch kernels are all there is"
)

EMULATED = ("-DHK_EMULATE_BF16",)  # dot products of bfloat16 in plain C++


def _builds() -> dict[str, tuple[str, ...]]:
    builds: dict[str, tuple[str, ...]] = {"native": ()}
    has = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    if platform.machine() != "x86_64" or "avx512f" not in has:
        # the code for vectors of 512 bits, compiled to shorter ones
        return builds | {"wide": ("-DHK_WIDE", *EMULATED, "-O1")}
    builds["avx2"] = ("-march=x86-64-v3", "-O1")
    if "avx512_vnni" in has:
        # the first processors with AVX512 have no dot products
        builds["avx512"] = ("-march=x86-64-v4", *EMULATED, "-O1")
    if "amx_int8" in has:
        builds["without tiles"] = ("-DHK_NO_AMX", "-O1")
    elif "avx512_vbmi2" in has:
        header = Path(__file__).with_name("emulated_tiles.h")
        version = zlib.crc32(header.read_bytes())  # the name of the library depends on the flags, not on this file
        builds["emulated tiles"] = ("-march=icelake-server", "-O1", "-include", str(header), f"-DVERSION={version}")
    return builds


BUILDS = _builds()
MARKED = [pytest.param(name, marks=needs_compiler) for name in BUILDS]


def library_of(name: str) -> Path:
    """The compiled kernels; fails where they do not compile."""
    path = build_library(BUILDS[name])
    assert path is not None, "the kernels do not compile"
    return path
