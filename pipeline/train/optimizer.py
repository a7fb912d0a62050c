"""AdamW or Muon over the parameters of an adapter, updated by several threads.


optimizer = AdapterOptimizer("muon", model.parameters(), parts=2)
optimizer.step(rate, pool)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

from pipeline.train.errors import TrainingError

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}  # of a parameter, in its shape
OPTIMIZERS = tuple(MOMENTS)
_ADAMW_RATE = 1e-3
_NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # Jordan's coefficients
_ADAMW_UPDATE = 0.2  # root mean square of AdamW's updates, relative to the rate
_MUON_RATE, _LEAST_MUON_RATE, _MOST_MUON_RATE = 2.7e5, 1e-4, 2e-3


def default_rate(optimizer: str, parameters: int) -> float:
    """The peak learning rate for a base of so many parameters.

    Muon's was measured with 135 and 494 million parameters (docs/log.md); between and above, it is an assumption.
    """
    if optimizer != "muon":
        return _ADAMW_RATE
    return min(_MOST_MUON_RATE, max(_LEAST_MUON_RATE, _MUON_RATE / parameters))


class AdapterOptimizer:
    """One optimizer over some parameters.

    Args:
        name: one of `OPTIMIZERS`.
        parameters: matrices with gradients.
        parts: the parameters are split into so many parts, each updated by one thread.
    """

    def __init__(self, name: str, parameters: Sequence[torch.nn.Parameter], parts: int) -> None:
        self.name, self._parameters = name, list(parameters)
        self._parts = [_make(name, self._parameters[first::parts]) for first in range(min(parts, len(parameters)))]

    def step(self, rate: float, pool: Executor) -> None:
        """Update all parameters by their gradients with this learning rate."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
        list(pool.map(lambda part: part.step(), self._parts))

    def state(self) -> dict[str, Tensor]:
        """The moments by the number of their parameter and their name, such as `3.exp_avg`, on the CPU."""
        result: dict[str, Tensor] = {}
        for i, parameter in enumerate(self._parameters):
            moments = self._part(i).state.get(parameter, {})
            for name in MOMENTS[self.name]:
                result[f"{i}.{name}"] = moments.get(name, torch.zeros_like(parameter)).cpu()
        return result

    def load(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Continue with the moments of `state`, which other entries may accompany, after so many steps.

        Raises:
            TrainingError: they are another optimizer's.
        """
        for i, parameter in enumerate(self._parameters):
            if missing := [name for name in MOMENTS[self.name] if f"{i}.{name}" not in state]:
                raise TrainingError(
                    f"the checkpoint has no {missing[0]!r}: it was made with another optimizer than {self.name}; "
                    "resume with --optimizer as in the first run, or give another --output"
                )
            moments = {name: state[f"{i}.{name}"].to(parameter.device) for name in MOMENTS[self.name]}
            self._part(i).state[parameter] = {"step": torch.tensor(float(steps)), **moments}

    def _part(self, index: int) -> torch.optim.Optimizer:
        return self._parts[index % len(self._parts)]


class Muon(torch.optim.Optimizer):
    """Muon: the update of a matrix is made orthogonal, so that all its directions are learned at the same speed.

    Unlike `torch.optim.Muon` it computes in float32, because a CPU may only emulate bfloat16, and iterates on the small
    Gram matrix instead of the update. Its rate is about as large as AdamW's for the same parameters.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; the scale is of Liu et al. 2025,
    https://arxiv.org/abs/2502.16982.

    Args:
        parameters: matrices with gradients.
        momentum: share of the earlier updates.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": _LEAST_MUON_RATE})
        self._momentum = momentum

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # a closure is not needed
        """Update all parameters by their gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - self._momentum)
                update = orthogonal(parameter.grad.lerp(average, self._momentum))  # Nesterov's momentum
                parameter.add_(update, alpha=-group["lr"] * _ADAMW_UPDATE * max(parameter.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """U Vᵀ of a float32 matrix U S Vᵀ, roughly: singular values are between 0.6 and 1.3, and tiny ones stay smaller.

    Five steps of a Newton-Schulz iteration X ← (a + b X Xᵀ + c (X Xᵀ)²) X, whose product is formed first.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    gram = (wide @ wide.T).double()
    one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    product, (a, b, c) = one, _NEWTON_SCHULZ
    for _ in range(5):
        factor = a * one + b * gram + c * (gram @ gram)
        product, gram = factor @ product, factor @ gram @ factor
    result: Tensor = product.to(wide.dtype) @ wide
    return result if matrix.shape[0] <= matrix.shape[1] else result.T


def _make(name: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if name == "muon":
        return Muon(parameters)
    return torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=0.01)
