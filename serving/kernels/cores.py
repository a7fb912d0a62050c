"""How many cores this process may use: its affinity, and the quota of its container.

available_cores()
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """At least 1. A container's quota often is far below the cores that it sees."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return seen if quota is None else max(1, min(seen, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores' worth of time a period; None when there is no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            words = " ".join((cgroup / name).read_text(encoding="ascii") for name in names).split()
            quota, period = (float(word) for word in words)
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
