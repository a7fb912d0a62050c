"""Count the CPU cores that this process may use, by its affinity and its container's quota."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Number of cores, at least 1. A container's quota is often far below the number of visible cores."""
    visible = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return visible if quota is None else max(1, min(visible, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """CPU time per period, in cores; None if there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            numbers = " ".join((cgroup / name).read_text(encoding="ascii") for name in names).split()
            quota, period = map(float, numbers)
        except (OSError, ValueError):  # the other version of cgroups, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
