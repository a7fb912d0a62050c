"""Merged folders are complete or absent, and have the requested shards and the right tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.paths import ROOT
from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging import merge as merging
from pipeline.weights.merging.merge import MergeState, Rounding, merge_folder
from tests.pipeline.weights.merging.trained_adapters import LLAMA, QWEN, TIED_LLAMA, logits, trained


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def merge(folder: Path, output: str = "out", **options: str) -> dict[str, object]:
    return merge_folder(folder / "base", folder / "adapter", folder / output, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "count"), [(None, None), ("10KB", None), ("1GB", 1)])
def test_shards_are_those_of_the_base_or_of_the_size_asked_for(
    tmp_path: Path, size: str | None, count: int | None
) -> None:
    trained(tmp_path, TIED_LLAMA, modules_to_save=["lm_head"])
    report = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", shard_size=size)
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    base = sorted(path.name for path in (tmp_path / "base").glob("*.safetensors"))
    assert report["shards"] == len(shards)
    if size is None:
        assert shards == base
    elif count == 1:
        assert shards == ["model.safetensors"]
        assert not (tmp_path / "out/model.safetensors.index.json").exists()
    else:
        sizes = [sum(t.nbytes for t in load_file(tmp_path / "out" / name).values()) for name in shards]
        assert len(shards) > len(base)
        assert max(sizes) <= 10_000
    merge(tmp_path, "whole")
    torch.testing.assert_close(logits(tmp_path / "out"), logits(tmp_path / "whole"), rtol=0, atol=0)


@pytest.mark.parametrize("size", ["0", "five", "-1GB", "5TB5"])
def test_invalid_sizes_are_refused(tmp_path: Path, size: str) -> None:
    trained(tmp_path, LLAMA)
    with pytest.raises(CheckpointError, match="is not a size"):
        merge(tmp_path, shard_size=size)


def test_an_interrupted_merge_continues_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, QWEN, use_dora=True)
    whole = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "whole", Rounding.NF4)
    finish = MergeState.finish
    count = len(list((tmp_path / "base").glob("*.safetensors")))
    assert count > 2

    def stop(self: MergeState, file: str, *rest: object) -> None:
        finish(self, file, *rest)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    for done in range(count):
        with monkeypatch.context() as patch:
            patch.setattr(MergeState, "finish", stop)
            with pytest.raises(KeyboardInterrupt):
                merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", Rounding.NF4)
        assert not (tmp_path / "out").exists()
        assert len(list((tmp_path / ".out.partial").glob("*.safetensors"))) == done + 1
    report = merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", Rounding.NF4)
    assert report["resumed_shards"] == count
    assert report["differences"] == whole["differences"]
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not (tmp_path / ".out.partial").exists()


def test_changed_inputs_are_merged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, LLAMA)
    with monkeypatch.context() as patch:
        patch.setattr(merging, "write_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge(tmp_path)
    shard = sorted((tmp_path / "base").glob("*.safetensors"))[0]
    save_file({name: tensor + 1 for name, tensor in load_file(shard).items()}, shard, metadata={"format": "pt"})
    report = merge(tmp_path)
    assert report["resumed_shards"] == report["shards"] - 1  # type: ignore[operator]
    merge(tmp_path, "fresh")
    assert files(tmp_path / "out") == files(tmp_path / "fresh")


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor in column-major order, as a training may leave it."""
    return tensor.T.contiguous().T if tensor.ndim == 2 else tensor


def test_bin_files_give_the_same_bytes(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA, dtype=torch.bfloat16)
    merge_folder(tmp_path / "base", tmp_path / "adapter", tmp_path / "out", shard_size="1GB")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    parts = [load_file(path) for path in sorted(base.glob("*.safetensors"))]
    weight_map = {}
    for index, part in enumerate(parts):
        torch.save({name: _turned(tensor) for name, tensor in part.items()}, base / f"pytorch_model-{index}.bin")
        weight_map |= dict.fromkeys(part, f"pytorch_model-{index}.bin")
    (base / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    for path in [*base.glob("*.safetensors*"), *adapter.glob("*.safetensors")]:
        path.unlink()
    merge(tmp_path, "again", shard_size="1GB")
    assert files(tmp_path / "again") == files(tmp_path / "out")


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("hostile",)


def test_bin_files_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, LLAMA)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    for content in ({"a": _Hostile()}, [1], {"a": "text"}, {1: torch.ones(1)}):
        torch.save(content, tmp_path / "adapter/adapter_model.bin")
        with pytest.raises(CheckpointError, match=r"adapter_model\.bin"):
            merge(tmp_path)
    assert not (tmp_path / "hostile").exists()
    (tmp_path / "adapter/adapter_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(CheckpointError, match="cannot be read safely"):
        merge(tmp_path)


def test_the_adapter_s_tokenizer_and_templates_are_used(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for name in ("tokenizer.json", "special_tokens_map.json", "vocab.json", "tokenizer_config.json"):
        (base / name).write_text("{}")
    (base / "chat_template.jinja").write_text("base")
    merge(tmp_path, "bare")
    assert {"tokenizer.json", "vocab.json", "chat_template.jinja"} <= files(tmp_path / "bare").keys()

    (adapter / "chat_template.jinja").write_text("adapter")
    (adapter / "additional_chat_templates").mkdir()
    (adapter / "additional_chat_templates/tools.jinja").write_text("tools")
    merge(tmp_path, "template")
    assert (tmp_path / "template/chat_template.jinja").read_text() == "adapter"
    assert (tmp_path / "template/additional_chat_templates/tools.jinja").read_text() == "tools"
    assert (tmp_path / "template/vocab.json").exists()

    (adapter / "tokenizer.json").write_text('{"added_tokens": []}')
    merge(tmp_path)
    assert (tmp_path / "out/tokenizer.json").read_text() == '{"added_tokens": []}'
    assert not (tmp_path / "out/vocab.json").exists()  # it belongs to the base's tokenizer
    assert not (tmp_path / "out/adapter_config.json").exists()


def test_the_command_writes_a_report_and_names_mistakes(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    command = [sys.executable, ROOT / "scripts/merge_lora", tmp_path / "base", tmp_path / "adapter", tmp_path / "out"]
    done = subprocess.run([*command, "--nf4", "--json", tmp_path / "report.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"seconds", "tensors", "changed", "differences", "peak_memory_bytes"} <= report.keys()
    assert (report["changed"], report["rounding"]) == (14, "nf4")
    assert "nf4_merge" in done.stderr
    assert "plain_merge" in done.stderr
    (tmp_path / "adapter/adapter_config.json").unlink()
    failed = subprocess.run(command, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "has no adapter_config.json" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_base_s_template_in_its_configuration_stays_unless_the_adapter_has_one(tmp_path: Path) -> None:
    trained(tmp_path, LLAMA)
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": "base", "eos_token": "</s>"}))
    for name, its, expected in (
        ("none", None, {"chat_template": "base", "eos_token": "</s>"}),
        ("without", {"eos_token": "<|im_end|>"}, {"chat_template": "base", "eos_token": "<|im_end|>"}),
        ("own", {"chat_template": "own"}, {"chat_template": "own"}),
    ):
        if its is not None:
            (adapter / "tokenizer_config.json").write_text(json.dumps(its))
        merge(tmp_path, name)
        assert json.loads((tmp_path / name / "tokenizer_config.json").read_text()) == expected
    (adapter / "chat_template.jinja").write_text("a file")
    (adapter / "tokenizer_config.json").write_text("{}")
    merge(tmp_path, "file")
    assert "chat_template" not in json.loads((tmp_path / "file" / "tokenizer_config.json").read_text())
