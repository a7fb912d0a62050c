"""How much memory this process may still take."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Available memory of the machine or of this process's container, whichever is less, in bytes; 0 if unknown."""
    limits = []
    with suppress(OSError, ValueError):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # the other version of cgroups, or "max"
            total, used = (int((cgroup / name).read_text(encoding="ascii")) for name in (limit, usage))
            limits.append(max(0, total - used))
    return min(limits, default=0)
