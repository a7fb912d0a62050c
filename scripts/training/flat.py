"""All trained numbers in one vector.

Owns: cutting a flat buffer into tensors. Gradients of a worker, the optimizer's moments and a
checkpoint are vectors of the same length, so each of them is one operation.

    buffer = FlatBuffer(torch.zeros(n)); a = buffer.take(24, 576)
"""

from __future__ import annotations

from torch import Tensor


class FlatBuffer:
    """Hands out consecutive views of a vector."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._taken = 0

    def take(self, *shape: int) -> Tensor:
        """The next numbers of the vector, as a tensor of `shape` that shares their memory."""
        size = 1
        for length in shape:
            size *= length
        assert self._taken + size <= len(self.values)
        view = self.values[self._taken : self._taken + size].view(*shape)
        self._taken += size
        return view
