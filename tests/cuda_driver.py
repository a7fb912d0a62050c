"""An invented driver of GPUs, compiled for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from serving.kernels.build import find_compiler

# Its GPUs have compute capability 8.6.
_SOURCE = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) { fprintf(stderr, "noise\\n"); %(first)s; return %(init)d; }
int cuDeviceGetCount(int *count) { *count = %(count)d; return 0; }
int cuDeviceGet(int *device, int number) { *device = 7; return number; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 : 6;
    return device != 7;
}
"""


def make_driver(folder: Path, *, init: int = 0, count: int = 1, first: str = "") -> str:
    """Compile it.

    Args:
        folder: where `libcuda.so.1` will be.
        init: the error that cuInit gives; 0 is none.
        count: number of GPUs.
        first: a statement that cuInit begins with.

    Returns:
        The path of the library.
    """
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("a driver is compiled")
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(_SOURCE % {"init": init, "count": count, "first": first})
    subprocess.run([compiler, "-xc", str(source), "-shared", "-fPIC", "-o", str(library)], check=True)
    return str(library)
