"""The kernels under test: as compiled for this machine, and the code for twice its vectors."""

from __future__ import annotations

import pytest

from serving.kernels.base import Activations
from serving.kernels.build import build_library, find_compiler
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels

BUILDS = {"native": (), "wide": ("-DHK_WIDE", "-O1")}


@pytest.fixture(scope="session", params=BUILDS)
def library_path(request):
    if find_compiler() is None:
        pytest.skip("no C++ compiler here: the torch kernels are all there is")
    path = build_library(BUILDS[request.param])
    assert path is not None, "the kernels do not compile"
    return path


@pytest.fixture(scope="session", params=Activations)
def activations(request, library_path):
    if request.param is Activations.BFLOAT16 and not CpuLibrary(library_path, 1).has_bfloat16:
        pytest.skip("no tiles for bfloat16 here: the kernels round to int16, which is tested")
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
