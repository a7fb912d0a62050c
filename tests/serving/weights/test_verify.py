"""Weights are loaded only if every file matches the lock; the error names the differences and the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.weights.recipes import Recipe, recipes
from serving.errors import WeightsError
from serving.weights import LockedWeights, WeightsLock, list_files, lock_files, set_digest, verify
from tests import small_model

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "sub").mkdir(parents=True)
    save_file({"a": np.zeros(4, np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "sub/notes.txt").write_text("hello")
    return folder


def entry(folder: Path, name: str = "tiny") -> LockedWeights:
    files = lock_files(folder)
    return LockedWeights(
        name=name,
        target="/src/tiny",
        sources=(),
        imported_at="2025-01-01T00:00:00Z",
        set_digest=set_digest(files),
        size=sum(file.size for file in files),
        files=files,
    )


def write_lock(path: Path, *entries: LockedWeights) -> Path:
    path.write_text(WeightsLock(version=1, envelope_format="", weights=entries).text())
    return path


@pytest.fixture
def lock(folder: Path, tmp_path: Path) -> Path:
    return write_lock(tmp_path / "weights.lock", entry(folder))


def test_matching_weights_are_accepted(folder: Path, lock: Path) -> None:
    verified = verify(folder, lock)
    assert verified.directory == folder
    assert [file.path for file in verified.files] == ["config.json", "model.safetensors", "sub/notes.txt"]
    assert verified.set_digest == set_digest(lock_files(folder))


def test_all_differences_are_named_at_once(folder: Path, lock: Path) -> None:
    (folder / "sub/notes.txt").unlink()
    (folder / "sub/other.txt").write_text("new")
    (folder / "config.json").write_text('{"model_type": "Llama"}')  # same size
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(WeightsError) as raised:
        verify(folder, lock)
    message = str(raised.value)
    assert "missing: sub/notes.txt (5 bytes)" in message
    assert "extra: sub/other.txt (3 bytes)" in message
    assert "altered: config.json (expected sha256:" in message
    size = (folder / "model.safetensors").stat().st_size
    assert f"altered: model.safetensors (expected {size - 1:,} bytes, found {size:,})" in message
    assert "scripts/build_weights" in message


def test_a_change_of_one_bit_that_keeps_size_and_time_is_found(folder: Path, lock: Path) -> None:
    path = folder / "model.safetensors"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(WeightsError, match=r"altered: model\.safetensors \(expected sha256:\w{12}…, found sha256:"):
        verify(folder, lock)


def test_the_error_of_a_missing_folder_or_lock_names_the_command(tmp_path: Path, lock: Path) -> None:
    with pytest.raises(WeightsError, match=r"does not exist.*scripts/build_weights"):
        verify(tmp_path / "nowhere", lock)
    with pytest.raises(WeightsError, match=r"cannot read the lock.*scripts/lock_weights"):
        verify(tmp_path / "tiny", tmp_path / "no.lock")


@pytest.mark.parametrize("place", ["model.safetensors", "sub/notes.txt", "sub/more"])
def test_links_are_refused_even_if_their_contents_match(folder: Path, lock: Path, tmp_path: Path, place: str) -> None:
    path = folder / place
    if path.exists():
        path.rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "elsewhere").mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=f"{path.name} is a symbolic link"):
        verify(folder, lock)


def test_a_pipe_is_refused_without_reading_it(folder: Path, lock: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(WeightsError, match="not a regular file"):
        verify(folder, lock)


def test_cog_s_own_folder_is_skipped_only_at_the_top(folder: Path, lock: Path) -> None:
    (folder / ".cog").mkdir()
    (folder / ".cog/state").write_text("x")
    verify(folder, lock)
    (folder / "sub/.cog").mkdir()
    (folder / "sub/.cog/state").write_text("x")
    with pytest.raises(WeightsError, match=r"extra: sub/\.cog/state"):
        verify(folder, lock)


@pytest.mark.parametrize("name", ["model.bin", "weights.PT", "sub/modeling.py", "a.pkl", "b.npz"])
def test_formats_that_run_code_cannot_even_be_locked(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"x")
    with pytest.raises(WeightsError, match="could run code"):
        lock_files(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"auto_map": {"AutoModel": "modeling.Model"}}', "auto_map names code"),
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_config_that_names_code_or_is_invalid_is_refused(folder: Path, text: str, message: str) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text(text)
        with pytest.raises(WeightsError, match=message):
            lock_files(folder)
        (folder / name).write_text("{}")


def test_weights_without_tensors_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \.safetensors file"):
        lock_files(folder)


def test_a_lock_of_several_models_is_searched_for_the_folder_s_name(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.lock"
    verify(folder, write_lock(path, entry(folder, "other"), entry(folder, "tiny")))
    with pytest.raises(WeightsError, match="no weights named 'tiny'; it has other, third"):
        verify(folder, write_lock(path, entry(folder, "other"), entry(folder, "third")))


def test_files_are_listed_by_path_with_their_sizes(folder: Path) -> None:
    sizes = list_files(folder)
    assert list(sizes) == ["config.json", "model.safetensors", "sub/notes.txt"]
    assert sizes["sub/notes.txt"] == 5


@pytest.mark.parametrize("path", [ROOT / "weights.lock", *ROOT.glob("examples/*/*/weights.lock")], ids=str)
def test_committed_locks_are_in_the_form_that_we_write(path: Path) -> None:
    assert WeightsLock.load(path).text() == path.read_text("utf-8")


@pytest.mark.weights
@pytest.mark.parametrize("recipe", recipes(ROOT).values(), ids=lambda recipe: recipe.name)
def test_built_weights_are_the_locked_ones(recipe: Recipe) -> None:
    if recipe.name != small_model.RECIPE.name and not recipe.weights(ROOT).exists():
        pytest.skip(f"scripts/build_weights {recipe.name} makes the weights, from a download of half a gigabyte")
    assert verify(recipe.weights(ROOT), recipe.lock(ROOT)).name == recipe.name
