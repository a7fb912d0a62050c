"""The KV cache takes a GPU's free memory, and leaves what a step needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.gpu.engine_checkpoint import TINY, write_weights
from serving.config import Settings
from serving.engines.paged.kv_budget import CacheRoom, choose_num_blocks, cuda_memory, step_bytes
from serving.engines.paged.options import adapter_bytes, default_num_blocks
from serving.errors import SettingError
from serving.kernels.reference import ReferenceKernels
from serving.kernels.select import Device
from serving.models.config import parse_config
from serving.models.loader import load_with_kernels

GIB = 1 << 30
ROOM = CacheRoom(block_size=16, max_model_len=512, max_num_batched_tokens=64)


def memory_of(used: int):
    """A GPU of 8 GiB."""
    return lambda: (8 * GIB - used, 8 * GIB)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_weights(folder, TINY)
    return load_with_kernels(folder, ReferenceKernels())


def test_all_memory_up_to_the_share_is_used_and_a_step_still_fits(model):
    block = 2 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, KV heads, tokens, head_dim, float32
    assert block == sum(cache.nbytes for cache in model.allocate_kv_caches(1, 16))
    settings = Settings(gpu_memory_utilization=0.75)
    blocks = choose_num_blocks(settings, model, ROOM, Device.CUDA, memory_of(1 * GIB))
    left = 6 * GIB - 1 * GIB - step_bytes(model.config, ROOM)
    assert blocks * block <= left < (blocks + 1) * block
    other = choose_num_blocks(settings, model, ROOM, Device.CUDA, memory_of(2 * GIB))
    assert blocks - other == pytest.approx(GIB / block, abs=1), "other processes' memory counts"


def test_num_blocks_is_taken_as_it_is_and_a_cpu_takes_what_is_usually_needed(model):
    assert choose_num_blocks(Settings(num_blocks=7), model, ROOM, Device.CUDA, memory_of(8 * GIB)) == 7
    usual = default_num_blocks(512, max_num_seqs=32, block_size=16)
    for device in (Device.CPU, Device.TRITON_INTERPRETER):
        assert choose_num_blocks(Settings(), model, ROOM, device) == usual


@pytest.mark.parametrize("used", [7.15, 7.9])
def test_a_gpu_too_full_for_one_request_is_refused_with_the_figures(model, used):
    message = (
        r"GPU_MEMORY_UTILIZATION=0\.9 of 8\.0 GiB: 7\.\d are in use.*MAX_MODEL_LEN=512 needs 32\..*other processes"
    )
    with pytest.raises(SettingError, match=message):
        choose_num_blocks(Settings(), model, ROOM, Device.CUDA, memory_of(int(used * GIB)))


def test_a_step_needs_no_more_than_was_kept_for_it():
    """By the largest tensors of a layer and of the head, and with more rows more is kept."""
    config = parse_config({**TINY, "intermediate_size": 2048})
    room = CacheRoom(16, 512, 512)
    rows = torch.empty(512)
    gate_up, logits = rows.nbytes * 2 * 2048, rows.nbytes * config.vocab_size
    assert step_bytes(config, room) > gate_up + logits
    assert step_bytes(config, replace(room, max_num_batched_tokens=1024)) - step_bytes(config, room) > gate_up + logits


def test_adapters_have_memory_of_their_own_where_requests_may_name_some(model):
    room = replace(ROOM, adapter_bytes=GIB)
    assert step_bytes(model.config, room) - step_bytes(model.config, ROOM) == pytest.approx(GIB, rel=0.01)
    assert step_bytes(model.config, room) > step_bytes(model.config, ROOM) + GIB, "and for what is between two products"
    assert adapter_bytes(Settings()) == 0
    assert adapter_bytes(Settings(adapters="adapters.yaml", adapter_memory_mb=5)) == 5_000_000
    with pytest.raises(
        SettingError, match=r"a step and adapters need 1\.\d.*Lower MAX_MODEL_LEN, ADAPTER_MEMORY_MB or"
    ):
        choose_num_blocks(Settings(), model, room, Device.CUDA, memory_of(6 * GIB))


@pytest.mark.gpu
def test_cuda_says_what_is_free():
    free, total = cuda_memory()
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert 0 < cuda_memory()[0] <= free - held.nbytes < total
