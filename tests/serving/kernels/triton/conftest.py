"""The Triton kernels: interpreted on the CPU, or compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from serving.devices import has_cuda_device
from tests.serving.kernels.triton.placing import DEVICE


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
    from serving.kernels.triton.kernels import TritonKernels
    from serving.kernels.triton.launching import INTERPRETED
    from serving.kernels.triton.tiles import SMALL_TILES

    assert has_cuda_device() != INTERPRETED, "tests/conftest.py sets TRITON_INTERPRET before triton is imported"
    return TritonKernels(DEVICE, half=half, tiles=SMALL_TILES)


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
