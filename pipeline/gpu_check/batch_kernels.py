"""Checks the kernels that do not treat all rows of a batch alike: adapters, and products of allowed tokens."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pipeline.gpu_check.kernel_operands import poisoned
from pipeline.gpu_check.kernel_shapes import KernelShapes
from serving.kernels.base import Kernels
from serving.kernels.lora import QKV, LoraAdapter, LoraBatch, LoraMatrices, LoraSegment, LoraSite, Projection
from serving.kernels.masked_products import MaskedProducts

_SITE: Final = LoraSite(0, QKV)
_PLACES: Final = ((1, 2), (2, 20), (20, 36), (37, 40))  # rows of each adapter; the others have none
_RANKS: Final = (3, 8, 33, 64)
_ROWS: Final = 41
_ALLOWED: Final = (2, 33, 7)  # tokens of each row


def batch_kernels_checked(kernels: Kernels, shapes: KernelShapes) -> tuple[tuple[str, float, int], ...]:
    """Of each kernel a name, its error relative to the sum of the absolute products, and numbers that differ."""
    return _adapters(kernels, shapes), _allowed(kernels, shapes)


def _adapters(kernels: Kernels, shapes: KernelShapes) -> tuple[str, float, int]:
    """Numbers that differ: of a row alone; of rows without an adapter from what they were."""
    inputs, outputs, _ = shapes.matmuls[0]
    adapters = [_adapter(rank, inputs, outputs) for rank in _RANKS]
    batch = LoraBatch(tuple(LoraSegment(*place, one) for place, one in zip(_PLACES, adapters, strict=True)))
    x, before = torch.randn(_ROWS, inputs), torch.randn(_ROWS, outputs * len(QKV))
    found, exact, size = before.clone(), before.double(), before.double().abs()
    kernels.add_lora(x, batch, _SITE, found)
    differing = 0
    for (first, stop), adapter in zip(_PLACES, adapters, strict=True):
        rows = slice(first, stop)
        for i, one in enumerate(adapter.layers[0][projection] for projection in QKV):
            columns = slice(i * outputs, (i + 1) * outputs)
            down, up = one.down.to(x.device).double(), one.up.to(x.device).double()
            exact[rows, columns] += x[rows].double() @ down.T @ up * one.scaling
            size[rows, columns] += x[rows].double().abs() @ down.abs().T @ up.abs() * one.scaling
        alone = before[first : first + 1].clone()
        kernels.add_lora(x[first : first + 1], LoraBatch((LoraSegment(0, 1, adapter),)), _SITE, alone)
        differing += int((alone[0] != found[first]).sum())
    without = [row for row in range(_ROWS) if not any(first <= row < stop for first, stop in _PLACES)]
    differing += int((found[without] != before[without]).sum())
    error = float(((found - exact).abs() / size).max())
    return f"adapters of ranks {', '.join(map(str, _RANKS))}, {inputs}×{outputs}", error, differing


def _allowed(kernels: Kernels, shapes: KernelShapes) -> tuple[str, float, int]:
    """Numbers that differ: from those of the whole product."""
    outputs, inputs = shapes.table
    weight, x, rows = torch.randn(outputs, inputs).half(), torch.randn(len(_ALLOWED), inputs), len(_ALLOWED)
    whole = poisoned(rows, outputs)
    kernels.dense_gemm(x, weight, whole)
    with torch.device("cpu"):
        columns = [torch.randperm(outputs)[:count].sort().values for count in _ALLOWED]
        out = MaskedProducts(
            torch.zeros(rows).int(), torch.zeros(rows, max(_ALLOWED)).int(), poisoned(rows, max(_ALLOWED))
        )
        kernels.masked_products(x, weight, torch.arange(rows, dtype=torch.int32), _bitmasks(columns, outputs), out)
    errors, differing = [], 0
    for i, chosen in enumerate(columns):
        one, matrix = x[i].double().cpu(), weight.cpu()[chosen].double()
        found = out.products[i, : len(chosen)]
        errors.append(float(((found - matrix @ one).abs() / (matrix.abs() @ one.abs())).max()))
        differing += int((found != whole[i].cpu()[chosen]).sum())
    return f"products of {', '.join(map(str, _ALLOWED))} of {outputs} tokens", max(errors), differing


def _adapter(rank: int, inputs: int, outputs: int) -> LoraAdapter:
    """In float16, on the CPU, where adapters are loaded; all projections have one shape."""
    with torch.device("cpu"):
        return LoraAdapter(
            (
                tuple(
                    LoraMatrices(torch.randn(rank, inputs).half(), torch.randn(rank, outputs).half(), 0.5)
                    for _ in Projection
                ),
            )
        )


def _bitmasks(columns: list[Tensor], outputs: int) -> Tensor:
    """[rows, ceil(outputs / 32)] int32, lowest bit first."""
    bits = torch.zeros(len(columns), -(-outputs // 32) * 32, dtype=torch.int64)
    for row, chosen in zip(bits, columns, strict=True):
        row[chosen] = 1
    words = (bits.view(len(columns), -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()
