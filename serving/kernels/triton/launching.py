"""Launches Triton kernels, compiled on a GPU or interpreted on the CPU."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)  # by TRITON_INTERPRET, which counts when triton is imported
# The interpreter fails if two threads use it at once.
_LOCK = threading.Lock() if INTERPRETED else nullcontext()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a function decorated with `triton.jit`; `constants` are compiled into it.

    The grid is the number of programs in up to three dimensions, none of them 0.
    """
    with _LOCK:
        kernel[grid](*arguments, **constants)
