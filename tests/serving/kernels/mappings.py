"""Reads from Linux how a tensor's memory is mapped (proc_pid_smaps(5))."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

SMAPS = Path("/proc/self/smaps")
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_of(tensor: torch.Tensor) -> set[str]:
    """The flags of the mapping that holds the tensor's beginning."""
    return next(set(rest.split()) for name, rest in _lines(tensor) if name == "VmFlags:")


def resident_bytes(tensor: torch.Tensor) -> int:
    """Resident memory of the mapping, which may hold other tensors too."""
    return next(1024 * int(rest.split()[0]) for name, rest in _lines(tensor) if name == "Rss:")


def _lines(tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
    inside = False
    for line in SMAPS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= tensor.data_ptr() < end
        elif inside:
            yield first, rest
