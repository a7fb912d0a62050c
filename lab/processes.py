"""The processes of a server or an engine: its worker, their memory, and whether any is left."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started, directly or not; without those that have ended."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def worker(pid: int) -> psutil.Process:
    """The process of a Cog server that has the model: the largest that it has started."""
    return max(family(pid)[1:], key=_resident)


def resident_bytes(pid: int) -> int:
    """Memory of a process and all that it has started; pages that several share count in each."""
    return sum(map(_resident, family(pid)))


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process and all that it has started, in MB of 2^20; in PSS, shared pages count once."""
    total = {"rss_mb": 0.0, "pss_mb": 0.0}
    for process in family(pid):
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            found = process.memory_full_info()
            total = {"rss_mb": total["rss_mb"] + found.rss / 2**20, "pss_mb": total["pss_mb"] + found.pss / 2**20}
    return {name: round(value, 1) for name, value in total.items()}


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that have not ended."""
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def left_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """The processes that have not ended after so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := running(processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
