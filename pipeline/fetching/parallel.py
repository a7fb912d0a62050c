"""Downloads a file in parallel ranges with hf-transfer: `python parallel.py URL PATH`.

hf-transfer acts on Ctrl-C only when it is done, so it has a process of its own, which is killed when its parent ends.
"""

from __future__ import annotations

import ctypes
import signal
import sys

import hf_transfer

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    hf_transfer.download(*sys.argv[1:3], 8, 16 << 20, headers={}, parallel_failures=3, max_retries=5)
