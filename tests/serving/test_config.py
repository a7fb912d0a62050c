"""Settings: from the environment, frozen, and nothing unknown or out of range gets in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from serving.config import Settings


def test_each_setting_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "paged")
    monkeypatch.setenv("MAX_NUM_SEQS", "3")
    monkeypatch.setenv("WEIGHTS_DIR", "elsewhere")
    monkeypatch.setenv("TENSOR_PARALLEL_SIZE", "2")
    settings = Settings()
    assert (settings.engine, settings.max_num_seqs, settings.weights_dir) == ("paged", 3, Path("elsewhere"))
    assert settings.tensor_parallel_size == 2


def test_what_the_program_says_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", "paged")
    assert Settings(engine="fake").engine == "fake"


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Dockerfile's or a shell's `MAX_MODEL_LEN=` means it."""
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


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
