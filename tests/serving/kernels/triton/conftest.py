"""The Triton kernels: interpreted on the CPU, or compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from serving.devices import has_cuda_device
from serving.kernels.triton.tiles import TileSizes
from tests.serving.kernels.triton.placing import DEVICE

# As small as they can be, so that small inputs have several steps and splits.
SMALL = TileSizes(columns=32, inputs=64, dense_inputs=32, split_inputs=128, keys=16, split_keys=64)


@pytest.fixture(autouse=True)
def on_device():
    """Inputs are made where the kernels run."""
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)


def make_kernels(half: bool):
    pytest.importorskip(
        "triton", reason="triton is not installed; scripts/test installs it from requirements/dev.no-deps.txt"
    )
    from serving.kernels.triton.launching import INTERPRETED
    from serving.kernels.triton.triton_kernels import TritonKernels

    assert has_cuda_device() != INTERPRETED, "tests/conftest.py sets TRITON_INTERPRET before triton is imported"
    return TritonKernels(DEVICE, half=half, tiles=SMALL)


@pytest.fixture(scope="session", params=[False, True], ids=["float32", "float16"])
def half(request):
    return request.param


@pytest.fixture(scope="session")
def kernels(half):
    return make_kernels(half)


@pytest.fixture(scope="session")
def float32():
    """For kernels that compute the same in either mode."""
    return make_kernels(False)
