"""Where the Triton kernels run in tests."""

import pytest

from serving.devices import has_cuda_device

DEVICE = "cuda" if has_cuda_device() else "cpu"
# Where there is a GPU these tests need it; elsewhere they are interpreted.
ON_THE_GPU = [pytest.mark.gpu if has_cuda_device() else pytest.mark.interpreted]
