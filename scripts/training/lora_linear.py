"""A frozen linear layer with LoRA beside it, and its backward pass by hand.

Owns: the one autograd function that most of the training time is spent in. A fused layer (q, k, v
in one matrix) has one LoRA pair per part. In fp32 the product of A and B is merged into the weight
once a step, so that forward and the gradient of the input cost one matmul each; in bf16, where
merging would round small updates away, LoRA is computed beside the weight. Gradients of A and B
are added to buffers of the layer's own. Knows nothing of attention.

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


class LoraLinear:
    """y = x Wᵀ + scaling · (x Aᵀ) Bᵀ for each part of a fused W.

    Args:
        weight: [out, in] frozen; the rows of all parts in order.
        parts: name and number of rows of each part.
    """

    def __init__(self, weight: Tensor, parts: Mapping[str, int], rank: int, scaling: float) -> None:
        self.weight = weight
        self.parts = dict(parts)
        self.rank = rank
        self.scaling = scaling
        self.merged = weight.clone() if weight.dtype == torch.float32 else None
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
        """Merge again. Call after A or B changed."""
        if self.merged is None:
            return
        pairs = zip(self.parts, self._rows(self.merged, 0), self._rows(self.weight, 0), strict=True)
        for name, merged, weight in pairs:
            torch.addmm(weight, self.lora_b[name], self.lora_a[name], alpha=self.scaling, out=merged)

    def __call__(self, x: Tensor, anchor: Tensor) -> Tensor:
        """x: [T, in] → [T, out]. `anchor` makes autograd record layers whose x needs no gradient."""
        out: Tensor = _LoraLinearFunction.apply(x, anchor, self)  # type: ignore[no-untyped-call]
        return out

    def forward(self, x: Tensor) -> Tensor:
        """The layer's value, without autograd."""
        if self.merged is not None:
            return functional.linear(x, self.merged)
        parts = []
        for name in self.parts:
            low = functional.linear(x, self.lora_a[name].to(x.dtype))
            parts.append(functional.linear(low, self.lora_b[name].to(x.dtype)))
        return functional.linear(x, self.weight) + self.scaling * torch.cat(parts, dim=-1)

    def backward(self, x: Tensor, grad: Tensor, need_input: bool) -> Tensor | None:
        """Adds to the gradients of A and B; returns that of x."""
        weight = self.weight if self.merged is None else self.merged
        grad_x = grad @ weight if need_input else None
        for name, part in zip(self.parts, self._rows(grad, -1), strict=True):
            a, b = self.lora_a[name].to(x.dtype), self.lora_b[name].to(x.dtype)
            low = functional.linear(x, a)
            grad_low = part @ b
            self.grad_b[name].add_(part.t() @ low, alpha=self.scaling)
            self.grad_a[name].add_(grad_low.t() @ x, alpha=self.scaling)
            if grad_x is not None and self.merged is None:
                grad_x = grad_x + self.scaling * (grad_low @ a)
        return grad_x


class _LoraLinearFunction(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LoraLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.layer.backward(x, grads[0], ctx.needs_input_grad[0]), None, None
