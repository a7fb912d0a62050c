"""Compiled for GPUs, without one, the Triton kernels spill no registers and load weights 16 bytes at a time.

With the types of DTYPE=auto, which are for speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pipeline.paths import ROOT

# Shared memory of a block in KiB, by CUDA's programming guide, table "Technical Specifications per Compute Capability"
SHARED_KIB = {80: 163, 89: 99, 90: 227, 100: 227}
# Kernels with loops, and how many loads of 16 bytes they have at least
LOOPS = {
    **{"w4a16, 16 rows": 24, "w4a16, 32 rows": 24, "w4a16, 64 rows": 36, "dense": 18, "chosen": 18},
    **{"attend_splits": 20, "shrink": 6, "expand": 1},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Name and target → what the compiler made of it."""
    pytest.importorskip(
        "triton", reason="triton is not installed; scripts/test installs it from requirements/dev.no-deps.txt"
    )
    cache = str(tmp_path_factory.mktemp("triton"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.serving.kernels.triton.compiled_kernels"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_kernel_spills_registers(compiled):
    few = {"w4a16, 64 rows, sm_100": 32}  # bytes of a thread
    spilled = {name: found["spilled"] for name, found in compiled.items() if found["spilled"] > few.get(name, 0)}
    assert spilled.pop("few registers") > 100, "or the check finds nothing"
    assert set(spilled) <= {"float32"}, "which is for comparisons, not for speed"


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_kernels_with_loops_fit_shared_memory_and_load_16_bytes_at_a_time(compiled, capability):
    for name, wide_loads in LOOPS.items():
        found = compiled[f"{name}, sm_{capability}"]
        assert found["shared"] <= SHARED_KIB[capability] * 1024, name
        assert found["wide_loads"] >= wide_loads, name


def test_float32_fits_the_smallest_shared_memory(compiled):
    assert compiled["float32"]["shared"] <= min(SHARED_KIB.values()) * 1024


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_of_an_adapter_only_addresses_and_sizes_are_loaded_otherwise(compiled, capability):
    assert compiled[f"shrink, sm_{capability}"]["narrow_loads"] <= 5


@pytest.mark.parametrize("name", ["w4a16, 16 rows", "w4a16, 64 rows", "dense"])
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_weights_are_loaded_16_bytes_at_a_time(compiled, name, capability):
    """Only zeros and scales, 4 bytes a column in each stage, are loaded otherwise."""
    assert compiled[f"{name}, sm_{capability}"]["narrow_loads"] <= 4
    assert compiled["unaligned weights"]["narrow_loads"] > 8, "or the check finds nothing"


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_unpacked_weights_go_to_the_tensor_cores_without_shared_memory(compiled, capability):
    """Only the sums are stored there, once at the end, to be written 16 bytes at a time."""
    for name, dots in (("w4a16, 16 rows", 1), ("w4a16, 32 rows", 2), ("w4a16, 64 rows", 4)):
        assert compiled[f"{name}, sm_{capability}"]["shared_stores"] <= 4 * dots, name
    assert compiled["float32"]["shared_stores"] > 4, "or the check finds nothing"
