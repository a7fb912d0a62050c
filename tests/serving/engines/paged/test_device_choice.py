"""DEVICE selects what computes the model, and a GPU is never left idle without a word."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from serving.config import Settings
from serving.devices import has_cuda_device
from serving.engines.paged.device_choice import choose_device
from serving.errors import EngineNotAvailableError, SettingError, WeightsError
from serving.kernels.select import Device, create_kernels
from serving.models.config import read_config
from serving.models.quantization import Quantization
from tests.serving.models import tiny_checkpoints


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return read_config(tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize(
    ("device", "has_gpu", "expected"),
    [
        ("auto", False, Device.CPU),
        ("cpu", False, Device.CPU),
        ("cpu", True, Device.CPU),
        ("auto", True, Device.CUDA),
        ("cuda", True, Device.CUDA),
        ("triton-interpreter", False, Device.TRITON_INTERPRETER),
    ],
)
def test_the_cpu_computes_where_there_is_no_gpu_or_the_operator_says_so(config, capsys, device, has_gpu, expected):
    assert choose_device(Settings(device=device), config, has_gpu=has_gpu) is expected
    said = "DEVICE=auto: cuda, because there is a GPU" in capsys.readouterr().err
    assert said == (device == "auto" and has_gpu)


def test_cuda_without_a_gpu_is_refused(config):
    with pytest.raises(SettingError, match=r"DEVICE=cuda.*shows no GPU.*set DEVICE=cpu"):
        choose_device(Settings(device="cuda"), config, has_gpu=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_without_kernels_for_the_checkpoint_is_refused_by_name(config, device):
    wide = replace(config, attention=replace(config.attention, head_dim=320))
    with pytest.raises(WeightsError, match=rf"DEVICE={device}.*head_dim 320.*up to 256.*ENGINE=vllm.*DEVICE=cpu"):
        choose_device(Settings(device=device), wide, has_gpu=True)
    odd = replace(config, quantization=Quantization(24))
    with pytest.raises(WeightsError, match=rf"DEVICE={device}.*group_size 24.*multiples of 16.*quantize_awq.*DEVICE="):
        choose_device(Settings(device=device), odd, has_gpu=True)
    assert choose_device(Settings(device="cpu"), odd, has_gpu=True) is Device.CPU


def test_settings_that_a_gpu_would_ignore_are_refused(config):
    with pytest.raises(SettingError, match=r"NUM_THREADS=2.*DEVICE=auto.*DEVICE=cpu"):
        choose_device(Settings(num_threads=2), config, has_gpu=True)
    assert choose_device(Settings(num_threads=2), config, has_gpu=False) is Device.CPU


@pytest.mark.parametrize(("name", "value"), [("gpu_memory_utilization", 0.5), ("compile", "off")])
def test_settings_of_a_gpu_are_refused_without_one(config, name, value):
    settings = Settings(**{name: value})
    assert choose_device(settings, config, has_gpu=True) is Device.CUDA
    for device in ("auto", "cpu", "triton-interpreter"):
        without = settings.model_copy(update={"device": device})
        with pytest.raises(SettingError, match=rf"{name.upper()}={value} would be ignored.*without a GPU.*ENGINE=vllm"):
            choose_device(without, config, has_gpu=False)


def test_a_share_of_memory_beside_a_number_of_blocks_is_refused(config):
    settings = Settings(gpu_memory_utilization=0.5, num_blocks=9)
    with pytest.raises(SettingError, match=r"GPU_MEMORY_UTILIZATION=0\.5 would be ignored with NUM_BLOCKS=9"):
        choose_device(settings, config, has_gpu=True)


@pytest.mark.skipif(has_cuda_device(), reason="there is a GPU here")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_torch_that_finds_no_gpu_is_named():
    with pytest.raises(EngineNotAvailableError, match=r"DEVICE=cuda: torch 2\S+ finds no GPU.*DEVICE=cpu"):
        create_kernels(Device.CUDA)
