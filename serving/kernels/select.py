"""Which kernels a device gets.

kernels = create_kernels("cpu", num_threads=2)
"""

from __future__ import annotations

from serving.kernels.base import Kernels
from serving.kernels.reference import ReferenceKernels


def create_kernels(device: str, num_threads: int | None = None) -> Kernels:
    """The fastest kernels for the device; plain torch where there are none of our own."""
    return ReferenceKernels(device)
