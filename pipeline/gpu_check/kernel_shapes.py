"""The shapes at which kernels are checked: of Mistral 7B and of the default model on a GPU, tiny ones interpreted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.gpu_check.place import Place
from serving.kernels.base import AttentionShape


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """What the kernels are given.

    Args:
        matmuls: inputs, outputs and group size of 4-bit weights.
        table: rows and columns of an unquantized weight.
        rows: rows of a matmul's input; more than 64 use torch's matmul in float16.
        attention: heads and their sizes.
        spans: first position and end of the requests in a batch of attention.
    """

    matmuls: tuple[tuple[int, int, int], ...]
    table: tuple[int, int]
    rows: tuple[int, ...]
    attention: tuple[AttentionShape, ...]
    spans: tuple[tuple[int, int], ...]


_SMALLEST: Final = KernelShapes(
    matmuls=((192, 40, 64),),
    table=(48, 72),
    rows=(1, 17, 65),
    attention=(AttentionShape(6, 2, 16, 21),),
    spans=((0, 5), (63, 66), (70, 71)),
)
_REAL: Final = KernelShapes(
    matmuls=((4096, 6144, 128), (4096, 28672, 128), (14336, 4096, 128), (576, 960, 64), (1536, 576, 64)),
    table=(49152, 576),
    rows=(1, 8, 16, 17, 33, 64, 65, 512),
    attention=(AttentionShape(32, 8, 128, 4096), AttentionShape(9, 3, 64, None)),
    spans=((0, 1), (0, 300), (500, 512), (4080, 4096), (511, 513), (5000, 5001)),
)


def shapes_for(place: Place) -> KernelShapes:
    """The shapes for this machine."""
    return _REAL if place.has_gpu else _SMALLEST
