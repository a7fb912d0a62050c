"""Whether vLLM can run four-bit weights here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from serving.devices import has_cuda_device


def has_kernels() -> bool:
    """vLLM's four-bit kernels need a GPU or AVX512."""
    cpu = Path("/proc/cpuinfo")
    return has_cuda_device() or (cpu.exists() and "avx512f" in cpu.read_text("utf-8"))


NEEDS_KERNELS: Final = pytest.mark.skipif(
    not has_kernels(), reason="vLLM's four-bit kernels need a GPU or a CPU with AVX512"
)
