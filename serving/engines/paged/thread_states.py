"""Ask the system whether this process's threads are blocked or only wait for their turn."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

# proc(5): R is running or waiting for a core, D is waiting for a disk or a lock of the system.
_CAN_RUN = frozenset("RD")


def others_can_run(tasks: Path = Path("/proc/self/task")) -> bool:
    """Whether a thread of this process other than the calling one computes, or waits for a core or a disk.

    A thread that waits for another thread cannot run. False on systems without /proc.
    """
    own = str(threading.get_native_id())
    with suppress(OSError):
        return any(_state(thread) in _CAN_RUN for thread in tasks.iterdir() if thread.name != own)
    return False


def _state(thread: Path) -> str:
    """One letter; "" if the thread has just ended."""
    with suppress(OSError):
        # The name before the state is in parentheses and may contain any character.
        return (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return ""
