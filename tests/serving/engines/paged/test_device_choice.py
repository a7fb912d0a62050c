"""DEVICE selects what computes the model, and a GPU is never left idle without a word."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serving.config import Settings
from serving.devices import has_cuda_device
from serving.engines.paged.device_choice import choose_device
from serving.errors import EngineNotAvailableError, SettingError, WeightsError
from serving.kernels.select import Device, create_kernels
from serving.models.config import Quantization, read_config
from tests.cuda_driver import make_driver
from tests.serving.models import tiny_checkpoints

ROOT = Path(__file__).parents[4]


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
    assert choose_device(Settings(engine="paged", device=device), config, has_gpu=has_gpu) is expected
    said = capsys.readouterr().err
    assert said == (
        "DEVICE=auto: paged on the GPU, because there is a GPU; DEVICE=cpu would be the CPU\n"
        if device == "auto" and has_gpu
        else ""
    )


@pytest.mark.parametrize(("device", "asked"), [("auto", "ENGINE=auto, DEVICE=auto"), ("cuda", "ENGINE=auto")])
def test_one_line_says_engine_and_device_and_why_and_how_to_get_others(config, capsys, device, asked):
    settings = Settings(device=device)
    assert choose_device(settings, config, has_gpu=True, vllm_fault="vLLM is not installed") is Device.CUDA
    assert capsys.readouterr().err == (
        f"{asked}: paged on the GPU, because there is one, and vLLM is not installed; ENGINE=vllm would be vLLM; "
        "DEVICE=cpu would be the CPU\n"
    )


def test_a_gpu_that_cannot_be_used_is_reported_and_an_error_only_where_it_was_asked_for(config, capsys):
    fault = "torch 2.13.0+cpu finds no GPU that it can use; install torch's CUDA build"
    assert choose_device(Settings(), config, has_gpu=True, gpu_fault=fault) is Device.CPU
    said = capsys.readouterr().err
    assert said.startswith(f"ENGINE=auto, DEVICE=auto: paged on the CPU, although there is a GPU: {fault}; ")
    assert said.count("\n") == 1
    with pytest.raises(EngineNotAvailableError, match=r"DEVICE=cuda: torch 2.*CUDA build; DEVICE=cpu"):
        choose_device(Settings(device="cuda"), config, has_gpu=True, gpu_fault=fault)
    assert choose_device(Settings(device="cpu"), config, has_gpu=True, gpu_fault=fault) is Device.CPU
    assert capsys.readouterr().err == ""


def test_cuda_without_a_gpu_is_refused(config):
    with pytest.raises(SettingError, match=r"DEVICE=cuda.*shows no GPU.*set DEVICE=cpu"):
        choose_device(Settings(device="cuda"), config, has_gpu=False)


def test_a_checkpoint_without_kernels_is_computed_on_the_cpu_or_refused_by_name(config, capsys):
    wide = replace(config, attention=replace(config.attention, head_dim=320))
    odd = replace(config, quantization=Quantization(24))
    reasons = {"head_dim 320.*up to 256.*ENGINE=vllm": wide, "group_size 24.*multiples of .*quantize_awq": odd}
    for reason, checkpoint in reasons.items():
        assert choose_device(Settings(), checkpoint, has_gpu=True) is Device.CPU
        assert re.search(rf"paged on the CPU, although there is a GPU: .*{reason}", capsys.readouterr().err)
        with pytest.raises(WeightsError, match=rf"DEVICE=cuda.*{reason}.*DEVICE=cpu"):
            choose_device(Settings(device="cuda"), checkpoint, has_gpu=True)
        assert choose_device(Settings(device="cpu"), checkpoint, has_gpu=True) is Device.CPU


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use this machine's GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_where_torch_cannot_use_the_gpu_that_the_driver_lists_the_cpu_computes(tmp_path):
    """In a process of its own, whose driver is an invented one."""
    checkpoint = tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path / "tiny")
    make_driver(tmp_path)
    program = (
        "from pathlib import Path; from serving.config import Settings; from serving.models.config import read_config;"
        "from serving.engines.paged.device_choice import find_device;"
        f"folder = Path({str(checkpoint)!r}); print(find_device(Settings(weights_dir=folder), read_config(folder)))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout == "cpu\n", done.stderr
    assert re.fullmatch(r".*paged on the CPU, although there is a GPU: torch 2\S+ finds no GPU .*\n", done.stderr)
