"""Choose the kernels for a device."""

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
    """The fastest kernels for the device: the C++ kernels on a CPU with a compiler, otherwise plain torch.

    Args:
        device: torch's name of it.
        num_threads: of the C++ kernels; None uses all cores that this process may use.
        activations: what inputs of 4-bit matmuls are rounded to.
    """
    path = build_library() if device == "cpu" else None
    if path is None:
        return ReferenceKernels(device, activations)
    return CpuKernels(CpuLibrary(path, num_threads or available_cores()), activations)
