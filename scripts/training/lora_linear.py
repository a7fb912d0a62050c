"""A frozen linear layer with LoRA beside it, and its backward pass by hand.

Owns: the one autograd function that most of the training time is spent in. A fused layer (q, k, v
in one matrix) has one LoRA pair per part. The product of A and B is merged into a copy of the weight
once a step, rounded if that is wanted, so that forward and the gradient of the input cost one matmul
each. A and B, their gradients and the sum are fp32; the copy has the dtype of the arithmetic.
Gradients of A and B pass rounding as if it were not there and are added to buffers of the layer's
own. Knows nothing of attention.

    layer = LoraLinear(weight, {"q_proj": 576, "k_proj": 192}, rank=24, scaling=2.0)
    y = layer(x, anchor)   # anchor: any tensor that requires grad
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from scripts.training.flat import FlatBuffer
from scripts.training.rounding import LayerRounding


class LoraLinear:
    """y = x Wᵀ + scaling · (x Aᵀ) Bᵀ for each part of a fused W.

    Args:
        weight: [out, in] fp32, frozen; the rows of all parts in order.
        parts: name and number of rows of each part.
        dtype: of x and y.

    `rounding` has what rounds the merged weight of a part; a part without an entry is not rounded.
    """

    def __init__(
        self, weight: Tensor, parts: Mapping[str, int], rank: int, scaling: float, dtype: torch.dtype
    ) -> None:
        self.weight = weight
        self.parts = dict(parts)
        self.rank = rank
        self.scaling = scaling
        self.merged = weight.to(dtype, copy=True)
        self.rounding: dict[str, LayerRounding] = {}
        self.lora_a: dict[str, Tensor] = {}
        self.lora_b: dict[str, Tensor] = {}
        self.grad_a: dict[str, Tensor] = {}
        self.grad_b: dict[str, Tensor] = {}

    @property
    def num_parameters(self) -> int:
        """Numbers in A and B of all parts."""
        return self.rank * (self.weight.shape[1] * len(self.parts) + sum(self.parts.values()))

    def bind(self, parameters: FlatBuffer) -> None:
        """Take A and B from `parameters`."""
        self.lora_a, self.lora_b = self._take(parameters)

    def replica(self, grads: FlatBuffer) -> LoraLinear:
        """The same layer, weights shared, that adds its gradients to `grads`."""
        other = copy.copy(self)
        other.grad_a, other.grad_b = self._take(grads)
        return other

    def _take(self, buffer: FlatBuffer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        in_features = self.weight.shape[1]
        a = {name: buffer.take(self.rank, in_features) for name in self.parts}
        b = {name: buffer.take(rows, self.rank) for name, rows in self.parts.items()}
        return a, b

    def _rows(self, fused: Tensor, dim: int) -> tuple[Tensor, ...]:
        return torch.split(fused, list(self.parts.values()), dim=dim)

    def refresh(self) -> None:
        """Merge and round again. Call after A, B or `rounding` changed."""
        pairs = zip(self.parts, self._rows(self.merged, 0), self._rows(self.weight, 0), strict=True)
        for name, merged, weight in pairs:
            exact = torch.addmm(weight, self.lora_b[name], self.lora_a[name], alpha=self.scaling)
            merged.copy_(self.rounding[name](exact) if name in self.rounding else exact)

    def __call__(self, x: Tensor, anchor: Tensor) -> Tensor:
        """x: [T, in] → [T, out]. `anchor` makes autograd record layers whose x needs no gradient."""
        out: Tensor = _LoraLinearFunction.apply(x, anchor, self)  # type: ignore[no-untyped-call]
        return out

    def backward(self, x: Tensor, grad: Tensor, need_input: bool) -> Tensor | None:
        """Adds to the gradients of A and B; returns that of x."""
        for name, part in zip(self.parts, self._rows(grad, -1), strict=True):
            a, b = self.lora_a[name].to(x.dtype), self.lora_b[name].to(x.dtype)
            self.grad_b[name].add_(part.t() @ functional.linear(x, a), alpha=self.scaling)
            self.grad_a[name].add_((part @ b).t() @ x, alpha=self.scaling)
        return grad @ self.merged if need_input else None


class _LoraLinearFunction(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LoraLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return functional.linear(x, layer.merged)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.layer.backward(x, grads[0], ctx.needs_input_grad[0]), None, None
