"""Pages of memory, taken from the system before they are written.

Owns: how many may be, and asking for them. The first write to a page waits until the system has cleared it;
a virtual machine may need 6 ms for a huge one, in the middle of a pass.

    Thread(target=populate, args=(kv_caches,), daemon=True).start()
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from serving.kernels.memory import HUGE_PAGE

_POPULATE_WRITE = 23  # madvise(2): MADV_POPULATE_WRITE, Linux 5.14
_MOST = 512 << 20
_SHARE = 4  # of the memory that is left, no more than a fourth
_NICE = 5  # lower, and busy threads would wait for a thread that hardly runs while it holds the memory map


def populate(tensors: Sequence[Tensor], most: int | None = None) -> None:
    """Have the pages of these tensors cleared, all tensors from their beginnings on; returns when it is done.

    For a thread of its own, whose priority it lowers. Where the system cannot do it, it does nothing.

    Args:
        most: bytes; by default a fourth of the memory that is left, and at most 512 MiB.
    """
    if sys.platform != "linux" or not tensors:
        return
    with suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    each = (min(_MOST, spare_memory() // _SHARE) if most is None else most) // len(tensors)
    libc = ctypes.CDLL(None)  # its calls let other threads run
    for done in range(0, min(each, max(t.nbytes for t in tensors)), HUGE_PAGE):
        for tensor in tensors:
            start = tensor.data_ptr() + done
            start += -start % mmap.PAGESIZE
            size = min(start + HUGE_PAGE, tensor.data_ptr() + tensor.nbytes) - start
            if size > 0 and libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_WRITE):
                return  # an older system


def spare_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the machine and this process's container have left; 0 when nobody says."""
    left = []
    with suppress(OSError, ValueError):
        lines = meminfo.read_text(encoding="ascii").splitlines()
        left += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # another version of cgroups, or "max"
            most, used = (int((cgroup / name).read_text(encoding="ascii")) for name in (limit, usage))
            left.append(max(0, most - used))
    return min(left, default=0)
