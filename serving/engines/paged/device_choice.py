"""Chooses the device that computes the paged engine's model."""

from __future__ import annotations

import sys

from serving.config import Settings
from serving.errors import SettingError, WeightsError
from serving.kernels.select import Device
from serving.kernels.triton.tiles import unsupported
from serving.models.config import ModelConfig


def choose_device(settings: Settings, config: ModelConfig, *, has_gpu: bool) -> Device:
    """The device that DEVICE means on this machine. A GPU stays idle only if DEVICE says so.

    Args:
        settings: of the engine.
        config: of the checkpoint.
        has_gpu: whether there is a GPU.

    Raises:
        SettingError: the device is not there, or a setting would be ignored on it.
        WeightsError: there are no CUDA kernels for the checkpoint.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not has_gpu):
        _check_without_gpu(settings)
        return Device.CPU
    if settings.device == "cuda" and not has_gpu:
        raise SettingError("DEVICE=cuda: this machine shows no GPU to this process; set DEVICE=cpu")
    _check_settings(settings)
    quantization = config.quantization
    reason = unsupported(quantization.group_size if quantization else None, config.attention.head_dim)
    if reason is not None:
        raise WeightsError(f"DEVICE={settings.device}: {reason}; DEVICE=cpu computes it on the CPU")
    if settings.device == "triton-interpreter":
        _check_without_gpu(settings)
        return Device.TRITON_INTERPRETER
    if settings.device == "auto":
        print("DEVICE=auto: cuda, because there is a GPU; DEVICE=cpu would leave it idle", file=sys.stderr)
    return Device.CUDA


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
