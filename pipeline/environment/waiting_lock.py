"""Locks for which a process waits, saying so on stderr. Standard library only: there may be no environment yet."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def waiting_lock(path: Path, message: str) -> Iterator[int]:
    """Hold the lock of a file, which is created where there is none and stays.

    It yields a descriptor: processes that inherit it hold the lock too, also after this one was killed.

    Args:
        path: the place of the file, whose folder exists.
        message: said if another process has the lock.
    """
    with path.open("w") as file:
        take_lock(file.fileno(), message)
        yield file.fileno()


def take_lock(descriptor: int, message: str) -> None:
    """Lock an open file; if another process has the lock, say the message and wait."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
