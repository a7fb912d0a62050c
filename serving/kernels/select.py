"""Choose the kernels for a device."""

from __future__ import annotations

import importlib.util
import os
import warnings
from enum import StrEnum

import torch

from serving.devices import available_cores
from serving.errors import EngineNotAvailableError, SettingError
from serving.kernels.base import Activations, Kernels
from serving.kernels.build import build_library
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels

_LOWEST_CAPABILITY = (8, 0)  # Ampere, the first with tf32
_NO_TRITON = "the package triton is not installed; pip install triton==3.7.1"


class Device(StrEnum):
    """What computes the model."""

    CPU = "cpu"
    CUDA = "cuda"
    TRITON_INTERPRETER = "triton-interpreter"  # the kernels for GPUs on the CPU, slowly: for tests

    @property
    def torch_name(self) -> str:
        """The name of the device on which torch has the tensors."""
        return "cuda" if self is Device.CUDA else "cpu"


def create_kernels(
    device: Device, num_threads: int | None = None, activations: Activations = Activations.FLOAT32
) -> Kernels:
    """The kernels for the device: C++ on a CPU with a compiler, otherwise plain torch; Triton on a GPU.

    Args:
        device: what computes.
        num_threads: the number of threads of the C++ kernels; None uses all cores that this process may use.
        activations: what inputs of linear layers are rounded to. In Triton it is FLOAT32, or float16 for all others.

    Raises:
        EngineNotAvailableError: the device lacks something, see `cuda_fault`.
        SettingError: TRITON_INTERPRET contradicts the device.
    """
    if device is not Device.CPU:
        return _triton_kernels(device, activations)
    path = build_library()
    if path is None:
        return ReferenceKernels(device.torch_name, activations)
    return CpuKernels(CpuLibrary(path, num_threads or available_cores()), activations)


def cuda_fault() -> str | None:
    """Why the kernels for GPUs cannot run in this process, with the remedy; None if they can. Initializes CUDA."""
    if importlib.util.find_spec("triton") is None:
        return _NO_TRITON
    with warnings.catch_warnings(record=True) as said:  # torch warns of a driver that is too old or does not work
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    if not is_available:
        remedy = "nvidia-smi shows its driver, maybe too old" if torch.version.cuda else "install torch's CUDA build"
        why = "".join(f" ({str(warning.message).partition(' (Triggered')[0]})" for warning in said[:1])
        return f"torch {torch.__version__} finds no GPU that it can use{why}; {remedy}"
    try:
        capability = torch.cuda.get_device_capability()
    except RuntimeError as error:
        return f"the GPU cannot be used: {str(error).splitlines()[0]}"
    if capability < _LOWEST_CAPABILITY:
        found, lowest = (".".join(map(str, version)) for version in (capability, _LOWEST_CAPABILITY))
        return f"the GPU has compute capability {found}, and the kernels need {lowest}"
    return None


def _triton_kernels(device: Device, activations: Activations) -> Kernels:
    if importlib.util.find_spec("triton") is None:
        raise EngineNotAvailableError(f"DEVICE={device}: {_NO_TRITON}, or set DEVICE=cpu")
    if device is Device.CUDA:
        if (fault := cuda_fault()) is not None:
            raise EngineNotAvailableError(f"DEVICE=cuda: {fault}, or set DEVICE=cpu")
    else:
        os.environ["TRITON_INTERPRET"] = "1"  # counts when triton is imported, which follows
    from serving.kernels.triton.kernels import TritonKernels
    from serving.kernels.triton.launching import INTERPRETED

    if INTERPRETED is not (device is Device.TRITON_INTERPRETER):
        raise SettingError(
            f"DEVICE={device}: triton was imported {'with' if INTERPRETED else 'without'} TRITON_INTERPRET=1; "
            f"{'unset' if INTERPRETED else 'set'} that environment variable"
        )
    return TritonKernels(device.torch_name, half=activations is not Activations.FLOAT32)
