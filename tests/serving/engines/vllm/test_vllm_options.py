"""The options and environment variables that vLLM gets from the settings; needs no vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.config import Settings
from serving.engines.vllm.draft_config import PROPOSER, WORKER, drafts_that_fit
from serving.engines.vllm.options import (
    GRAMMAR_SCHEDULER,
    check_device_settings,
    compiles,
    set_environment,
    speculation,
    uses_draft_worker,
)
from serving.errors import SettingError

VERSION = "0.32.0"
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


@pytest.mark.parametrize(("device", "is_cpu"), [("cuda", True), ("cpu", False)])
def test_a_device_that_this_vllm_is_not_built_for_is_refused(device: str, is_cpu: bool) -> None:
    check_device_settings(settings(device=device), is_cpu=not is_cpu)
    with pytest.raises(SettingError, match=f"DEVICE={device}.*unset DEVICE.*ENGINE=paged"):
        check_device_settings(settings(device=device), is_cpu=is_cpu)


def test_auto_is_our_drafter_with_its_worker() -> None:
    config = speculation(settings(), VERSION)
    assert config is not None
    assert (config["method"], config["model"]) == ("custom_class", PROPOSER)
    assert uses_draft_worker(config)
    for name in (PROPOSER, WORKER):
        module, _, found = name.rpartition(".")
        path = Path(*module.split(".")).with_suffix(".py")
        assert f"class {found}" in path.read_text("utf-8"), "vLLM imports it by name"


def test_the_scheduler_with_our_grammars_is_where_vllm_imports_it() -> None:
    module, _, found = GRAMMAR_SCHEDULER.rpartition(".")
    assert f"def {found}(" in Path(*module.split(".")).with_suffix(".py").read_text("utf-8")


def test_off_is_vllm_alone() -> None:
    config = speculation(settings(speculation="off"), VERSION)
    assert config is None
    assert not uses_draft_worker(config)


def test_on_another_version_vllm_serves_without_drafts_and_says_so(capsys) -> None:
    assert speculation(settings(), "0.33.1") is None
    said = capsys.readouterr().err
    assert "SPECULATION=auto: vLLM makes no drafts, because they were written for vLLM 0.32, and this is 0.33.1" in said
    ngram = speculation(settings(speculation="ngram"), "0.33.1")
    assert ngram is not None, "vLLM's own drafts need no plug-in"


@pytest.mark.parametrize(("method", "version"), [("off", VERSION), ("auto", "0.33.0")])
def test_max_draft_tokens_is_refused_without_drafts(method: str, version: str) -> None:
    with pytest.raises(SettingError, match=r"MAX_DRAFT_TOKENS=7 would be ignored.*unset it"):
        speculation(settings(speculation=method, max_draft_tokens=7), version)


@pytest.mark.parametrize(("tokens", "drafts"), [(64, 7), (None, 48), (16, 1)])
def test_with_adapters_the_drafts_of_all_requests_fit_one_step(tokens: int | None, drafts: int) -> None:
    """Otherwise vLLM does not start."""
    values = {"adapters": Path("adapters.yaml"), "max_num_seqs": 8, "max_num_batched_tokens": tokens}
    config = speculation(settings(**values), VERSION)
    assert config is not None
    assert config["num_speculative_tokens"] == drafts


def test_without_room_for_drafts_vllm_serves_adapters_without_them(capsys) -> None:
    values = {"adapters": Path("adapters.yaml"), "max_num_seqs": 32, "max_num_batched_tokens": 32}
    assert speculation(settings(**values), VERSION) is None
    assert "with adapters, those of 32 requests do not fit MAX_NUM_BATCHED_TOKENS" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["auto", "ngram"])
def test_max_draft_tokens_is_the_limit_of_every_drafter(method: str) -> None:
    config = speculation(settings(speculation=method, max_draft_tokens=7), VERSION)
    assert config is not None
    assert config["num_speculative_tokens"] == 7


@pytest.mark.parametrize(
    ("setting", "on_a_cpu", "on_a_gpu"), [("auto", False, True), ("on", True, True), ("off", False, False)]
)
def test_the_model_is_compiled_on_a_gpu_or_if_it_is_set(setting: str, on_a_cpu: bool, on_a_gpu: bool) -> None:
    assert compiles(settings(compile=setting), is_cpu=True) == on_a_cpu
    assert compiles(settings(compile=setting), is_cpu=False) == on_a_gpu


@pytest.mark.parametrize(
    ("free", "vocab_size", "num_requests", "drafts"),
    [
        (8 << 30, 152_000, 1, 974),
        (8 << 30, 152_000, 32, 30),
        (8 << 30, 32_000, 32, 144),
        (1 << 30, 152_000, 32, 3),
        (20 << 30, 49_152, 32, 235),  # a machine without a GPU
        (100 << 20, 152_000, 32, 0),
        (0, 152_000, 1, 0),
    ],
)
def test_the_logits_of_all_drafts_fit_half_of_the_free_memory(
    free: int, vocab_size: int, num_requests: int, drafts: int
) -> None:
    assert drafts_that_fit(free, vocab_size=vocab_size, num_requests=num_requests) == drafts
    assert drafts * num_requests * vocab_size * 29 <= free / 2 < (drafts + 1) * num_requests * vocab_size * 29
