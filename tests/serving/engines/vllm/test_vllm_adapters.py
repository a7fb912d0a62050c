"""What vLLM is told about adapters, and what it is never given; needs no vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engines.vllm.adapters import base_shapes, check_lora, lora_args
from serving.engines.vllm.options import check_device_settings
from serving.errors import AdapterError, SettingError, WeightsError
from serving.weights.adapter_files import CONFIG, TENSORS
from tests.serving.engines.paged.adapter_folders import write_registry

MODULE = "model.layers.0.self_attn.q_proj"
STEM = f"base_model.model.{MODULE}.lora_"
LIMITS = {"max_rank": 16, "max_bytes": 10_000}


def settings(**values: object) -> Settings:
    return Settings(weights_dir=Path("nowhere"), engine="vllm", **values)


def args_of(**values: object) -> dict[str, object]:
    chosen = settings(**values)
    return lora_args(chosen, Checkpoint.of(chosen).adapters)


def test_without_adapters_vllm_reserves_nothing() -> None:
    assert args_of() == {}
    with pytest.raises(SettingError, match="MAX_LORAS=4 would be ignored without ADAPTERS"):
        args_of(max_loras=4)


@pytest.mark.parametrize(("max_rank", "limit"), [(1, 1), (9, 16), (128, 128), (300, 320)])
def test_vllm_reserves_the_next_rank_that_it_takes(tmp_path: Path, max_rank: int, limit: int) -> None:
    registry = write_registry(tmp_path / "list.yaml", {"a": Path("a")}, max_rank=str(max_rank))
    args = args_of(adapters=registry)
    assert (args["enable_lora"], args["max_loras"], args["max_lora_rank"]) == (True, 8, limit)
    assert args_of(adapters=registry, adapter_sources="hf://org/")["max_lora_rank"] == max(128, limit)


def test_what_vllm_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "draft.model").touch()
    registry = write_registry(tmp_path / "list.yaml", {"a": Path("a")}, draft_model="draft.model")
    with pytest.raises(AdapterError, match="adapter 'a': draft_model would be ignored by vLLM"):
        args_of(adapters=registry)
    registry = write_registry(tmp_path / "list.yaml", {"a": Path("a")}, max_rank="513")
    with pytest.raises(AdapterError, match="max_rank: 513 is more than vLLM has, which is 512"):
        args_of(adapters=registry)
    with pytest.raises(SettingError, match="COMPILE=on would be ignored by vLLM on a CPU with adapters"):
        check_device_settings(settings(adapters=registry, compile="on"), is_cpu=True)


@pytest.mark.parametrize(
    ("name", "shape"), [("weight", (6, 16)), ("qweight", (16, 6)), ("weight_packed", (48, 2))], ids=lambda name: name
)
def test_the_base_s_shapes_are_read_whatever_its_format(tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
    save_file({f"{MODULE}.{name}": torch.zeros(shape, dtype=torch.int32)}, tmp_path / "model.safetensors")
    assert base_shapes(tmp_path) == {MODULE: (16, 6 if name == "weight" else 48)}


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", **config}))
    return folder


GOOD = {f"{STEM}A.weight": torch.zeros(4, 16), f"{STEM}B.weight": torch.zeros(6, 4)}
BASE = {MODULE: (16, 6)}


def test_an_adapter_of_this_base_is_accepted_with_its_size(tmp_path: Path) -> None:
    assert check_lora(write(tmp_path / "a", GOOD), BASE, **LIMITS) == 4 * (4 * 16 + 6 * 4)


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (GOOD, {"use_dora": True}, "use_dora is True"),
        (GOOD, {"r": 5}, r"is \[4, 16\], this model needs \[5, 16\]"),
        (GOOD, {"rank_pattern": {"q_proj": 17}}, "has rank 17, the limit is 16"),
        (GOOD | {f"{STEM}B.weight": torch.zeros(5, 4)}, {}, r"is \[5, 4\], this model needs \[6, 4\]"),
        ({f"{STEM}A.weight": torch.zeros(4, 16)}, {}, "has only one of A and B"),
        (GOOD | {"base_model.model.lm_head.weight": torch.zeros(2, 2)}, {}, "is no part of a linear layer's adapter"),
        ({name.replace("layers.0", "layers.1"): tensor for name, tensor in GOOD.items()}, {}, "base does not have"),
        (GOOD | {f"{STEM}A.weight": torch.zeros(4, 3000)}, {}, "the limit is 10,000; set ADAPTER_MEMORY_MB"),
    ],
)
def test_what_vllm_would_half_read_is_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], config: dict[str, object], message: str
) -> None:
    with pytest.raises(WeightsError, match=message):
        check_lora(write(tmp_path / "a", tensors, **config), BASE, **LIMITS)
