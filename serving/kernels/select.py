"""Choose the kernels for a device."""

from __future__ import annotations

import importlib.util
import os
from enum import StrEnum

import torch

from serving.errors import EngineNotAvailableError, SettingError
from serving.kernels.base import Activations, Kernels
from serving.kernels.build import build_library
from serving.kernels.cores import available_cores
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels

_LOWEST_CAPABILITY = (8, 0)  # Ampere, the first with tf32


class Device(StrEnum):
    """What computes the model."""

    CPU = "cpu"
    CUDA = "cuda"
    TRITON_INTERPRETER = "triton-interpreter"  # the kernels for GPUs on the CPU, slowly: for tests

    @property
    def torch_name(self) -> str:
        """Where torch has the tensors."""
        return "cuda" if self is Device.CUDA else "cpu"


def create_kernels(
    device: Device, num_threads: int | None = None, activations: Activations = Activations.FLOAT32
) -> Kernels:
    """The kernels for the device: C++ on a CPU with a compiler, otherwise plain torch; Triton on a GPU.

    Args:
        device: what computes.
        num_threads: of the C++ kernels; None uses all cores that this process may use.
        activations: what inputs of 4-bit matmuls are rounded to. In Triton it is FLOAT32, or float16 for all others.

    Raises:
        EngineNotAvailableError: triton, or a torch that finds the GPU, is not installed.
        SettingError: the GPU is too old, or TRITON_INTERPRET contradicts the device.
    """
    if device is not Device.CPU:
        return _triton_kernels(device, activations)
    path = build_library()
    if path is None:
        return ReferenceKernels(device.torch_name, activations)
    return CpuKernels(CpuLibrary(path, num_threads or available_cores()), activations)


def _triton_kernels(device: Device, activations: Activations) -> Kernels:
    if importlib.util.find_spec("triton") is None:
        raise EngineNotAvailableError(
            f"DEVICE={device} needs the package triton; pip install triton==3.7.1, or set DEVICE=cpu"
        )
    if device is Device.CUDA:
        _check_gpu()
    else:
        os.environ["TRITON_INTERPRET"] = "1"  # counts when triton is imported, which follows
    from serving.kernels.triton.launching import INTERPRETED
    from serving.kernels.triton.triton_kernels import TritonKernels

    if INTERPRETED is not (device is Device.TRITON_INTERPRETER):
        raise SettingError(
            f"DEVICE={device}: triton was imported {'with' if INTERPRETED else 'without'} TRITON_INTERPRET=1; "
            f"{'unset' if INTERPRETED else 'set'} that environment variable"
        )
    return TritonKernels(device.torch_name, half=activations is not Activations.FLOAT32)


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise EngineNotAvailableError(
            f"DEVICE=cuda: torch {torch.__version__} finds no GPU that it can use; install torch's CUDA build, "
            "or set DEVICE=cpu"
        )
    capability = torch.cuda.get_device_capability()
    if capability < _LOWEST_CAPABILITY:
        found, lowest = (".".join(map(str, version)) for version in (capability, _LOWEST_CAPABILITY))
        raise SettingError(
            f"DEVICE=cuda: the GPU has compute capability {found}, and the kernels need {lowest}; set DEVICE=cpu"
        )
