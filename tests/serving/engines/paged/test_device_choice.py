"""DEVICE selects what computes the model, and a GPU is never left idle without a word."""

from __future__ import annotations

import pytest

from serving.config import Settings
from serving.engines.paged.device_choice import choose_device
from serving.errors import SettingError
from serving.models.config import read_config
from tests.serving.models import tiny_checkpoints


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return read_config(tiny_checkpoints.save(tiny_checkpoints.tiny_llama(), tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize(("device", "has_gpu"), [("auto", False), ("cpu", False), ("cpu", True)])
def test_the_cpu_computes_where_there_is_no_gpu_or_the_operator_says_so(config, device, has_gpu):
    assert choose_device(Settings(device=device), config, has_gpu=has_gpu) == "cpu"


def test_cuda_without_a_gpu_is_refused(config):
    with pytest.raises(SettingError, match=r"DEVICE=cuda.*shows no GPU.*set DEVICE=cpu"):
        choose_device(Settings(device="cuda"), config, has_gpu=False)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_without_kernels_for_the_checkpoint_is_refused_by_name(config, device):
    with pytest.raises(SettingError, match=f"DEVICE={device}.*LlamaForCausalLM.*ENGINE=vllm.*DEVICE=cpu"):
        choose_device(Settings(device=device), config, has_gpu=True)
