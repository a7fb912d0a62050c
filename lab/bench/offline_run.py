"""Run a command and measure its time and the peak of its processes' resident memory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from lab.bench.process import LOG_LINES, EngineFailedError
from pipeline.paths import ROOT

_EVERY: Final = 0.5  # seconds between two looks at the memory


@dataclass(frozen=True, slots=True)
class Measured:
    """A command's wall time and memory.

    Args:
        seconds: from its start to its end.
        peak_mb: of all its processes together, pages that they share counted once (PSS).
    """

    seconds: float
    peak_mb: float


def run_measured(command: Sequence[str], env: Mapping[str, str], log: Path, limit: float) -> Measured:
    """Run a command to its end.

    Args:
        command: program and arguments.
        env: all of its environment variables.
        log: gets its output.
        limit: in seconds.

    Raises:
        EngineFailedError: it failed, or took longer; the message has the end of its output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), cwd=ROOT, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    peak, stopped = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, stopped), daemon=True)
    watcher.start()
    try:
        code = process.wait(timeout=limit)
        seconds = time.perf_counter() - begun
    except subprocess.TimeoutExpired as error:
        raise EngineFailedError(f"not ready within {limit:.0f} s: {_end(log)}") from error
    finally:
        stopped.set()
        watcher.join()
        _kill(process)
    if code:
        raise EngineFailedError(f"ended with {code}: {_end(log)}")
    return Measured(seconds, peak[0])


def _watch(pid: int, peak: list[float], stopped: threading.Event) -> None:
    while not stopped.wait(_EVERY):
        peak[0] = max(peak[0], _memory_mb(pid))


def _memory_mb(pid: int) -> float:
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):  # Ray's have other sessions than their parent
            with suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss
    return total / 2**20


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command's session."""
    left = []
    with suppress(psutil.Error):
        left = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in left:
        with suppress(psutil.Error):
            child.kill()
    process.wait()


def _end(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:])
