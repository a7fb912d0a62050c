"""What this process may use of its machine: GPUs, memory and cores. Standard library only, for before an install.

Nothing here initializes CUDA in this process, which would forbid vLLM to fork its workers.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_DRIVER = "libcuda.so.1"
_SECONDS = 60  # a driver that has been idle may first have to start its GPUs
# Writes the compute capability of the first GPU, such as `9 0`; exits with what failed otherwise.
_QUESTION = """
import ctypes, sys
cuda, number, device = ctypes.CDLL(sys.argv[1]), ctypes.c_int(), ctypes.c_int()
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit("%s gives error %d" % (name, code))
    return number.value
ask("cuInit", 0)
if not ask("cuDeviceGetCount", ctypes.byref(number)):
    sys.exit("it lists none")
ask("cuDeviceGet", ctypes.byref(device), 0)
print(*[ask("cuDeviceGetAttribute", ctypes.byref(number), attribute, device) for attribute in (75, 76)])
"""


def has_cuda_device(devices: Path = Path("/dev"), driver: str = _DRIVER) -> bool:
    """Whether there is a GPU of NVIDIA that this process may use.

    A device file is enough, so this is true with a driver that does not work. Sandboxes and WSL have no such file:
    there the driver is asked, unless it is missing.

    Args:
        devices: where device files are.
        driver: its library's name.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(devices.glob("nvidia[0-9]*")) or not isinstance(_capability(driver), str)


def gpu_fault(lowest: tuple[int, int], driver: str = _DRIVER) -> str | None:
    """Why the GPU cannot be used, as far as its driver tells; None if it can.

    Args:
        lowest: the compute capability that is needed.
        driver: its library's name.
    """
    found = _capability(driver)
    if isinstance(found, str):
        return found
    if found < lowest:
        return "the GPU has compute capability {}.{}, and {}.{} is needed".format(*found, *lowest)
    return None


@lru_cache
def _capability(driver: str) -> tuple[int, int] | str:
    """The compute capability of the first GPU, or why there is none. Takes a child process if there is a driver."""
    try:
        ctypes.CDLL(driver)  # initializes nothing
    except OSError:
        return f"the GPU's driver is not installed: there is no {driver}"
    command = [sys.executable, "-I", "-S", "-c", _QUESTION, driver]
    try:
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the GPU's driver does not answer within {_SECONDS} s; nvidia-smi may say why"
    if asked.returncode == 0:
        major, minor = asked.stdout.split()
        return int(major), int(minor)
    reason = asked.stderr.strip().rpartition("\n")[2] or f"asking it ends with code {asked.returncode}"
    return f"the GPU's driver does not work ({reason}); nvidia-smi may say why"


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


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed memory instead of returning it; no effect on jemalloc and on other systems."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_ARENA_MAX, 1)


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
