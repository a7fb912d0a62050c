"""The kernels under test, in each build that this machine can run."""

from __future__ import annotations

import pytest

from serving.kernels.base import Activations
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels
from tests.serving.kernels.builds import MARKED, library_of


@pytest.fixture(scope="session", params=MARKED)
def library_path(request):
    return library_of(request.param)


@pytest.fixture(scope="session", params=Activations)
def activations(request, library_path):
    if request.param is Activations.BFLOAT16 and not CpuLibrary(library_path, 1).has_bfloat16:
        pytest.skip("no tiles for bfloat16 here: the kernels round to int8, which is tested")
    return request.param


@pytest.fixture(scope="session")
def cpu(library_path, activations):
    """Two threads."""
    return CpuKernels(CpuLibrary(library_path, 2), activations)


@pytest.fixture(scope="session")
def cpu_float32(library_path):
    """For kernels that do not multiply 4-bit weights."""
    return CpuKernels(CpuLibrary(library_path, 2))


@pytest.fixture
def reference(activations):
    return ReferenceKernels(activations=activations)
