"""What vLLM finds in its environment; needs no vLLM."""

from __future__ import annotations

import os

import pytest

from serving.vllm_engine.options import set_environment

NAMES = ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "VLLM_LOGGING_STREAM")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nobody has set anything, and this process may use three cores of more."""
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k not in NAMES})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2, 1})
    return monkeypatch


@pytest.mark.parametrize("num_threads", [None, 3, 8])
def test_all_cores_are_bound_and_no_other(num_threads: int | None) -> None:
    set_environment(num_threads)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "1,2,5"
    assert "OMP_NUM_THREADS" not in os.environ


def test_fewer_threads_than_cores_are_bound_to_none() -> None:
    set_environment(2)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_what_the_operator_set_stays() -> None:
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_LOGGING_STREAM": "ext://sys.stdout"}
    set_environment(1)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stdout"


def test_the_log_stays_out_of_the_answer() -> None:
    set_environment()
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
