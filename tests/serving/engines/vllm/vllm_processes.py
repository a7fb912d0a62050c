"""Finds the processes that vLLM starts by their titles.

os.kill(vllm_process(parent_pid, "EngineCore").pid, signal.SIGKILL)
"""

from __future__ import annotations

from contextlib import suppress

import psutil


def vllm_process(ancestor: int, title: str) -> psutil.Process:
    """The descendant of `ancestor` called VLLM::`title`; with several engines, the one started last."""
    found = [child for child in vllm_processes(ancestor) if f"VLLM::{title}" in _title(child)]
    assert found, f"{title} among {[_title(child) for child in vllm_processes(ancestor)]}"
    return max(found, key=lambda process: process.create_time())


def vllm_processes(ancestor: int) -> list[psutil.Process]:
    """All processes called VLLM::something."""
    return [child for child in psutil.Process(ancestor).children(recursive=True) if "VLLM::" in _title(child)]


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
