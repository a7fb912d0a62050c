"""Whether this process may use a GPU. Standard library only: scripts ask before they install anything.

Nothing here initializes CUDA in this process, which would forbid vLLM to fork its workers.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
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
