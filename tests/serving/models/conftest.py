"""A model on each build of the CPU kernels; a module that uses it has a fixture `checkpoint`."""

import pytest

from serving.kernels.base import Activations
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.models.loader import load_with_kernels
from tests.serving.kernels.builds import MARKED, library_of


@pytest.fixture(params=MARKED)
def library(request):
    return CpuLibrary(library_of(request.param), 2)


@pytest.fixture(params=Activations)
def model(request, checkpoint, library):
    return load_with_kernels(checkpoint, CpuKernels(library, request.param))
