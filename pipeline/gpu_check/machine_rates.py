"""How fast this machine copies memory and multiplies matrices, measured: the two limits of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from pipeline.gpu_check.finding import Figure, Finding
from pipeline.gpu_check.place import Place

_BYTES: Final = {True: 2 << 30, False: 256 << 20}  # by whether there is a GPU: much larger than any cache
_SIZE: Final = {True: 8192, False: 1024}  # rows and columns of the matrices
_REPEATS: Final = 7


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured.

    Args:
        bytes_per_second: read and written while a large tensor is copied.
        flops: floating-point operations a second of torch's matmul, in float16 on a GPU and in float32 on a CPU.
    """

    bytes_per_second: float
    flops: float


@cache
def measure_rates(place: Place) -> Rates:
    """Measure both; the second call for a place returns what the first has measured."""
    return Rates(_copied(place), _multiplied(place))


def _copied(place: Place) -> float:
    source = torch.ones(_BYTES[place.has_gpu] // 4, device=place.torch_name)
    target = torch.empty_like(source)
    return 2 * source.nbytes / place.seconds(lambda: target.copy_(source), _REPEATS)


def _multiplied(place: Place) -> float:
    size, dtype = _SIZE[place.has_gpu], torch.float16 if place.has_gpu else torch.float32
    matrix = torch.randn(size, size, device=place.torch_name).to(dtype)
    return 2 * size**3 / place.seconds(lambda: matrix @ matrix, _REPEATS)


def machine_rates(place: Place) -> Finding:
    """Both as figures."""
    rates, size = measure_rates(place), _SIZE[place.has_gpu]
    what = f"torch's matmul of {size}×{size} in {'float16' if place.has_gpu else 'float32'}"
    return Finding(
        (
            Figure("copying, bytes read and written", rates.bytes_per_second / 1e9, "GB/s"),
            Figure(what, rates.flops / 1e12, "TFLOP/s"),
        ),
        not_run=() if place.has_gpu else ("a GPU's memory and tensor cores: this machine has no GPU",),
    )
