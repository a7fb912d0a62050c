"""Settings are read from the environment and frozen; unknown names and values out of range are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from serving.config import Settings
from serving.errors import WeightsError
from serving.weights import LockedFile, LockedWeights, WeightsLock, set_digest


def test_each_setting_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "paged")
    monkeypatch.setenv("MAX_NUM_SEQS", "3")
    monkeypatch.setenv("WEIGHTS_DIR", "elsewhere")
    monkeypatch.setenv("TENSOR_PARALLEL_SIZE", "2")
    settings = Settings()
    assert (settings.engine, settings.max_num_seqs, settings.weights_dir) == ("paged", 3, Path("elsewhere"))
    assert settings.tensor_parallel_size == 2


def test_arguments_take_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "paged")
    assert Settings(engine="fake").engine == "fake"


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As written by `MAX_MODEL_LEN=` in a Dockerfile or shell."""
    monkeypatch.setenv("MAX_MODEL_LEN", "")
    assert Settings().max_model_len is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seq": 8},  # misspelt
        {"max_num_seqs": 0},
        {"max_queue": 0},
        {"num_threads": 0},
        {"tensor_parallel_size": 0},
        {"gpu_memory_utilization": 1.5},
        {"speculation": "magic"},
        {"max_num_seqs": "many"},
    ],
)
def test_unknown_and_impossible_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Settings(**wrong)


def test_a_change_is_a_new_object() -> None:
    settings = Settings(max_queue=5)
    with pytest.raises(ValidationError, match="frozen"):
        settings.max_queue = 6
    assert settings.model_copy(update={"max_queue": 6}).max_queue == 6
    assert settings.max_queue == 5


def write_lock(path: Path, *names: str) -> None:
    files = (LockedFile(path="model.safetensors", size=1, digest="sha256:" + "0" * 64),)
    entries = tuple(
        LockedWeights(
            name=name, target=f"/src/weights/{name}", sources=(), imported_at="", set_digest=set_digest(files), size=1,
            files=files,
        )
        for name in names
    )  # fmt: skip
    path.write_text(WeightsLock(version=1, envelope_format="", weights=entries).text())


def test_the_weights_are_by_default_those_of_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their name is only in the lock."""
    write_lock(tmp_path / "other.lock", "my-model")
    assert Settings(weights_lock=tmp_path / "other.lock").weights_dir == tmp_path / "weights" / "my-model"
    monkeypatch.chdir(tmp_path)
    write_lock(tmp_path / "weights.lock", "another")
    assert Settings().weights_dir == Path("weights/another")
    monkeypatch.setenv("WEIGHTS_LOCK", "other.lock")
    assert Settings().weights_dir == Path("weights/my-model")
    assert not Settings().is_set("weights_dir")


def test_a_lock_without_exactly_one_model_is_an_error(tmp_path: Path) -> None:
    lock = tmp_path / "weights.lock"
    with pytest.raises(WeightsError, match=r"weights\.lock: cannot read the lock: No such file"):
        Settings(weights_lock=lock)
    write_lock(lock, "one", "two")
    with pytest.raises(WeightsError, match=r"names 2 sets of weights \(one, two\), not one; set WEIGHTS_DIR"):
        Settings(weights_lock=lock)
    assert Settings(weights_lock=lock, weights_dir="two").weights_dir == Path("two"), "then the lock is not read"


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
