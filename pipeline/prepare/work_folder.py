"""The folder beside the checkpoint in which one road at a time does its work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.environment.waiting_lock import take_lock


def work_path(checkpoint: Path) -> Path:
    """Where the work for a checkpoint is done: on the same disk, so that the end is a rename."""
    return checkpoint.with_name(f".{checkpoint.name}.road")


@contextmanager
def alone_in(folder: Path) -> Iterator[int]:
    """Make the folder and hold its lock, waiting while another process has it.

    Yields:
        The file descriptor of the lock. A command that inherits it keeps the lock, so that a new run waits for what
        a killed one has left running.
    """
    descriptor = _locked(folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int:
    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        take_lock(descriptor, f"Waiting for another process that works in {folder}")
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # the other process finished and removed its folder, with this file in it
