"""Copies tensors from the CPU to a device without waiting for the device."""

from __future__ import annotations

from torch import Tensor


def upload(tensor: Tensor, device: str) -> Tensor:
    """A CPU tensor on the device; the same tensor if that is the CPU."""
    if device == "cpu":
        return tensor
    # Out of pageable memory torch would wait until all earlier work on the GPU is done. Pinned memory is torch's own
    # to reuse, which waits for this copy.
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_to(target: Tensor, source: Tensor) -> None:
    """Overwrite a tensor of any device by one of the CPU."""
    target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)
