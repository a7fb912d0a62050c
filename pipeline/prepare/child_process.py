"""Run a command and measure it: wall time, processor time and peak memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

_PATIENCE = 5.0  # seconds that a command has to end by itself before it is asked, and again before it is killed


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command cost.

    Args:
        wall_seconds: the time from its start to its end.
        processor_seconds: the processor time of it and of all processes that it started and waited for.
        peak_memory_bytes: the largest resident memory of one of these processes.
    """

    wall_seconds: float
    processor_seconds: float
    peak_memory_bytes: int


def run_measured(command: Sequence[str], keep_open: int) -> tuple[int, Cost]:
    """Run a command to its end. Its output goes to stderr.

    Args:
        keep_open: a file descriptor that the command inherits, so that a lock on it lasts as long as the command.

    Returns:
        The exit code (128 + the signal's number where a signal ended it), and the cost.

    Raises:
        KeyboardInterrupt: this process was interrupted; the command has ended too.
    """
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[keep_open])
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except KeyboardInterrupt:
        _end(process)
        raise
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code  # Popen does not wait again
    cost = Cost(
        wall_seconds=round(time.monotonic() - started, 3),
        processor_seconds=round(usage.ru_utime + usage.ru_stime, 3),
        peak_memory_bytes=usage.ru_maxrss * 1024,
    )
    return (code if code >= 0 else 128 - code), cost


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the command, which a terminal's Ctrl-C reaches too; end it where only this process was interrupted."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_PATIENCE)
            return
    process.wait()
