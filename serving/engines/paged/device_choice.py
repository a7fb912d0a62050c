"""Chooses the device that computes the paged engine's model."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from serving.config import Settings
from serving.devices import has_cuda_device
from serving.engine import why_not_vllm
from serving.errors import EngineNotAvailableError, SettingError, WeightsError
from serving.kernels.select import Device, cuda_fault
from serving.kernels.triton.tiles import unsupported
from serving.models.config import ModelConfig


def find_device(settings: Settings, config: ModelConfig) -> Device:
    """See `choose_device`; finds out what this machine has."""
    if settings.device not in ("auto", "cuda") or not has_cuda_device():
        return choose_device(settings, config, has_gpu=False)
    gpu_fault = cuda_fault() or (_launcher_fault() if settings.device == "auto" else None)
    vllm_fault = why_not_vllm() if settings.engine == "auto" else None
    return choose_device(settings, config, has_gpu=True, gpu_fault=gpu_fault, vllm_fault=vllm_fault)


def choose_device(
    settings: Settings,
    config: ModelConfig,
    *,
    has_gpu: bool,
    gpu_fault: str | None = None,
    vllm_fault: str | None = None,
) -> Device:
    """The device that DEVICE means on this machine. A GPU stays idle only if DEVICE says so, or stderr says why.

    `gpu_fault` is why this process cannot use the GPU, None if it can, and `vllm_fault` why ENGINE=auto is not vLLM.

    Raises:
        SettingError: the device is not there, or a setting would be ignored on it.
        WeightsError: DEVICE names the GPU, or its interpreter, and there are no kernels for the checkpoint.
        EngineNotAvailableError: DEVICE names the GPU, which cannot be used.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not has_gpu):
        _check_without_gpu(settings)
        return Device.CPU
    if settings.device == "cuda" and not has_gpu:
        raise SettingError("DEVICE=cuda: this machine shows no GPU to this process; set DEVICE=cpu")
    quantization = config.quantization
    no_kernels = unsupported(quantization.group_size if quantization else None, config.attention.head_dim)
    if settings.device == "auto" and (fault := gpu_fault or no_kernels):
        _say(settings, f"the CPU, although there is a GPU: {fault}; ENGINE=vllm may use it; DEVICE=cuda ends here")
        _check_without_gpu(settings)
        return Device.CPU
    _check_settings(settings)
    if no_kernels is not None:
        raise WeightsError(f"DEVICE={settings.device}: {no_kernels}; DEVICE=cpu computes it on the CPU")
    if settings.device == "triton-interpreter":
        _check_without_gpu(settings)
        return Device.TRITON_INTERPRETER
    if gpu_fault is not None:
        raise EngineNotAvailableError(f"DEVICE=cuda: {gpu_fault}; DEVICE=cpu computes on the CPU")
    why = "there is a GPU" if vllm_fault is None else f"there is one, and {vllm_fault}; ENGINE=vllm would be vLLM"
    _say(settings, f"the GPU, because {why}; DEVICE=cpu would be the CPU")
    return Device.CUDA


def _say(settings: Settings, choice: str) -> None:
    """Say what was chosen, unless the settings say it already."""
    asked = [name for name in ("engine", "device") if getattr(settings, name) == "auto"]
    if asked:
        print(f"{', '.join(f'{name.upper()}=auto' for name in asked)}: paged on {choice}", file=sys.stderr)


def _check_without_gpu(settings: Settings) -> None:
    """Refuse what only a GPU has."""
    for name in ("gpu_memory_utilization", "compile"):
        if settings.is_set(name):
            raise SettingError(
                f"{name.upper()}={getattr(settings, name)} would be ignored by the paged engine without a GPU; "
                "unset it, or set ENGINE=vllm"
            )


def _check_settings(settings: Settings) -> None:
    """Refuse what would be ignored on a GPU."""
    where = f"with DEVICE={settings.device}"
    if settings.num_threads is not None:
        raise SettingError(f"NUM_THREADS={settings.num_threads} would be ignored {where}; unset it, or set DEVICE=cpu")
    if settings.num_blocks is not None and settings.is_set("gpu_memory_utilization"):
        raise SettingError(
            f"GPU_MEMORY_UTILIZATION={settings.gpu_memory_utilization:g} would be ignored with "
            f"NUM_BLOCKS={settings.num_blocks}; unset one of them"
        )


def _launcher_fault() -> str | None:
    """Why Triton cannot compile what launches its kernels, which is C; None if it can."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler; install gcc"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton does
    header = Path(sysconfig.get_paths(scheme)["include"], "Python.h")
    if not header.exists():
        version = ".".join(map(str, sys.version_info[:2]))
        return f"Triton needs {header}; install it (Debian: apt-get install python{version}-dev)"
    return None
