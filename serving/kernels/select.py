"""Which kernels a device gets.

kernels = create_kernels("cpu", num_threads=2)
"""

from __future__ import annotations

from serving.kernels.base import Activations, Kernels
from serving.kernels.build import build_library
from serving.kernels.cores import available_cores
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels


def create_kernels(
    device: str, num_threads: int | None = None, activations: Activations = Activations.FLOAT32
) -> Kernels:
    """The fastest kernels for the device; plain torch where there are none of our own.

    None threads takes all cores that this process may use.
    """
    path = build_library() if device == "cpu" else None
    if path is None:
        return ReferenceKernels(device, activations)
    return CpuKernels(CpuLibrary(path, num_threads or available_cores()), activations)
