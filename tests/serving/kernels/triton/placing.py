"""Where the Triton kernels run in tests."""

from serving.devices import has_cuda_device

DEVICE = "cuda" if has_cuda_device() else "cpu"
