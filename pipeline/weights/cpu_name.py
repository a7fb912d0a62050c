"""The name of this machine's processor."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The first `model name` that Linux states; the architecture where it states none."""
    lines = cpuinfo.read_text("utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
