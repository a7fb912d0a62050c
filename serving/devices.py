"""Whether this process may use a GPU. Standard library only: scripts ask before they install anything."""

from __future__ import annotations

import os
from pathlib import Path


def has_cuda_device(devices: Path = Path("/dev")) -> bool:
    """Whether the driver shows a GPU to this process.

    Asked of the file system: importing torch takes seconds, and initializing CUDA here would forbid
    vLLM to fork its workers.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(devices.glob("nvidia[0-9]*"))
