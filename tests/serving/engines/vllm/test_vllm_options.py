"""The options and environment variables that vLLM gets from the settings; needs no vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.config import Settings
from serving.engines.vllm.options import check_device_settings, compiles, set_environment, speculation
from serving.errors import SettingError

NAMES = ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "VLLM_LOGGING_STREAM", "VLLM_CPU_KVCACHE_SPACE")


def settings(**values: object) -> Settings:
    return Settings(weights_dir=Path("nowhere"), **values)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable is set, and this process may use three of the machine's cores."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k not in NAMES})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2, 1})
    return monkeypatch


@pytest.mark.parametrize("num_threads", [None, 3, 8])
def test_threads_are_bound_to_the_available_cores(num_threads: int | None) -> None:
    set_environment(settings(num_threads=num_threads))
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "1,2,5"
    assert "OMP_NUM_THREADS" not in os.environ


def test_fewer_threads_than_cores_are_not_bound() -> None:
    set_environment(settings(num_threads=2))
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_variables_that_the_operator_set_are_not_changed() -> None:
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_LOGGING_STREAM": "ext://sys.stdout"}
    set_environment(settings(num_threads=1))
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stdout"


def test_the_log_does_not_go_to_stdout() -> None:
    set_environment(settings())
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"


def test_gpu_memory_utilization_is_applied_on_a_cpu_too() -> None:
    """vLLM's CPU build ignores it where the size of the KV cache is given."""
    set_environment(settings(gpu_memory_utilization=0.3))
    assert "VLLM_CPU_KVCACHE_SPACE" not in os.environ
    set_environment(settings())
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_threads_are_refused_where_a_gpu_computes() -> None:
    check_device_settings(settings(num_threads=2), is_cpu=True)
    check_device_settings(settings(), is_cpu=False)
    with pytest.raises(SettingError, match=r"NUM_THREADS=2 .* on a GPU; unset it"):
        check_device_settings(settings(num_threads=2), is_cpu=False)


@pytest.mark.parametrize("method", ["auto", "off"])
def test_max_draft_tokens_is_refused_without_speculation(method: str) -> None:
    assert speculation(settings(speculation=method)) is None
    with pytest.raises(SettingError, match=r"MAX_DRAFT_TOKENS=7 .*set SPECULATION to ngram or suffix"):
        speculation(settings(speculation=method, max_draft_tokens=7))


def test_max_draft_tokens_is_passed_to_vllm_s_drafter() -> None:
    ngram = speculation(settings(speculation="ngram", max_draft_tokens=7))
    assert ngram is not None
    assert ngram["num_speculative_tokens"] == 7


@pytest.mark.parametrize(
    ("setting", "on_a_cpu", "on_a_gpu"), [("auto", False, True), ("on", True, True), ("off", False, False)]
)
def test_the_model_is_compiled_on_a_gpu_or_if_it_is_set(setting: str, on_a_cpu: bool, on_a_gpu: bool) -> None:
    assert compiles(settings(compile=setting), is_cpu=True) == on_a_cpu
    assert compiles(settings(compile=setting), is_cpu=False) == on_a_gpu
