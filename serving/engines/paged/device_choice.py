"""Chooses the device that computes the paged engine's model."""

from __future__ import annotations

from serving.config import Settings
from serving.errors import SettingError
from serving.models.config import ModelConfig


def choose_device(settings: Settings, config: ModelConfig, *, has_gpu: bool) -> str:
    """The device that DEVICE means on this machine. A GPU stays idle only if DEVICE says so.

    Args:
        settings: of the engine.
        config: of the checkpoint.
        has_gpu: whether there is a GPU.

    Raises:
        SettingError: the device is not there, or there are no kernels for it.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not has_gpu):
        return "cpu"
    if not has_gpu:
        raise SettingError("DEVICE=cuda: this machine shows no GPU to this process; set DEVICE=cpu")
    raise SettingError(
        f"DEVICE={settings.device}: there is a GPU, and the paged engine has no CUDA kernels for "
        f"{config.architecture}; set ENGINE=vllm, or DEVICE=cpu to run on the CPU"
    )
