"""LoRA layers whose forward pass takes one matmul with the merged weight, which may be rounded to four bits.

PEFT's own layer multiplies with the base's weight, A and B. Here their sum is computed once a step. Rounding has no
useful gradient, so the gradients of A and B are those without rounding (straight-through estimator, Bengio et al. 2013,
arXiv:1308.3432).
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from pipeline.train.rounding import LayerRounding

ADAPTER = "default"  # PEFT's name for the only adapter of a model


class MergedLora(LoraLinear):
    """PEFT's LoRA layer with another forward pass; names, initialization and files stay PEFT's.

    Attributes:
        rounding: rounds the merged weight; None if it is not rounded.
        merged_weight: [out, in] in the type of the base's weight, as of the last `refresh`.
    """

    base_layer: torch.nn.Linear
    rounding: LayerRounding | None = None
    merged_weight: Tensor

    def matrices(self) -> tuple[Tensor, Tensor]:
        """A [rank, in] and B [out, rank]."""
        a: Any = self.lora_A[ADAPTER]
        b: Any = self.lora_B[ADAPTER]
        return a.weight, b.weight

    @torch.no_grad()
    def refresh(self) -> None:
        """Merge again; to be called after A, B or `rounding` have changed."""
        weight = self.base_layer.weight
        a, b = self.matrices()
        low_rank = b.float() @ a.float()
        merged = weight.float() + self.scaling[ADAPTER] * low_rank
        self.merged_weight = (merged if self.rounding is None else self.rounding(merged)).to(weight.dtype)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x: [..., in] → [..., out]."""
        a, b = self.matrices()
        scaling = self.scaling[ADAPTER]
        out: Tensor = _MergedLinear.apply(x, a, b, self.merged_weight, scaling)  # type: ignore[no-untyped-call]
        return out if self.base_layer.bias is None else out + self.base_layer.bias


class _MergedLinear(Function):
    """y = x Wᵀ with W merged of A and B, and the gradients of x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, weight: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(x, a, b, weight)
        ctx.scaling = scaling
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, a, b, weight = ctx.saved_tensors
        grad, rows = grads[0].flatten(0, -2), x.flatten(0, -2)
        low = functional.linear(rows, a.to(x.dtype))  # [T, rank]
        grad_b = (grad.t() @ low).float() * ctx.scaling
        grad_a = ((grad @ b.to(x.dtype)).t() @ rows).float() * ctx.scaling
        grad_x = grads[0] @ weight if ctx.needs_input_grad[0] else None
        return grad_x, grad_a, grad_b, None, None
