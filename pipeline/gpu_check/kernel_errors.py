"""Compares Triton's kernels with plain torch in float64.

Errors of matmuls are relative to the sum of the absolute products, those of the other kernels to the largest value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from pipeline.gpu_check.batch_kernels import batch_kernels_checked
from pipeline.gpu_check.finding import Figure, Finding
from pipeline.gpu_check.kernel_operands import poisoned, qkv_width, random_awq, random_batch
from pipeline.gpu_check.kernel_shapes import KernelShapes, shapes_for
from pipeline.gpu_check.place import Place
from serving.kernels.base import AttentionShape, Kernels
from serving.kernels.reference import ReferenceKernels, dequantize_awq

BLOCK_SIZE: Final = 16
_FLOAT32, _TF32, _HALF = 2e-5, 2e-3, 4e-3  # limits: sums in float32; inputs rounded to tf32; outputs in float16 too


def kernel_errors(place: Place) -> Finding:
    """The largest error of each kernel, with DTYPE=auto's rounding and without any."""
    figures = list[Figure]()
    torch.manual_seed(1)
    with torch.device(place.torch_name), torch.inference_mode():
        for kernels, half, name in place.precisions():
            figures += [
                Figure(f"{what}, {name}", error, "", limit)
                for errors in (_matmuls, _table, _attention, _batches)
                for what, error, limit in errors(kernels, shapes_for(place), half)
            ]
        kernels = place.triton_kernels(half=False)
        figures += [Figure(what, error, "", _FLOAT32) for what, error in _elementwise(kernels, shapes_for(place))]
    how = () if place.has_gpu else ("compiled kernels at the sizes of real models: this machine has no GPU",)
    return Finding(tuple(figures), not_run=how)


def _matmuls(kernels: Kernels, shapes: KernelShapes, half: bool) -> Iterator[tuple[str, float, float]]:
    for inputs, outputs, group in shapes.matmuls:
        tensors = random_awq(inputs, outputs, group)
        weight, exact = kernels.pack_awq(tensors), dequantize_awq(tensors).double()
        x = torch.randn(max(shapes.rows), inputs)
        rounded = x.half().double() if half else x.double()
        for many in (False, True):
            chosen = [rows for rows in shapes.rows if (rows > 64) is many]
            errors = []
            for rows in chosen:
                out = poisoned(rows, outputs)
                kernels.awq_gemm(x[:rows], weight, out)
                errors.append(_relative(out, rounded[:rows], exact))
            limit = _HALF if half and many else _FLOAT32
            yield f"4-bit matmul {inputs}×{outputs}, {_listed(chosen)} rows", max(errors), limit


def _table(kernels: Kernels, shapes: KernelShapes, half: bool) -> Iterator[tuple[str, float, float]]:
    outputs, inputs = shapes.table
    weight, x = torch.randn(outputs, inputs).half(), torch.randn(max(shapes.rows), inputs)
    errors = []
    for rows in shapes.rows:
        out = poisoned(rows, outputs)
        kernels.dense_gemm(x[:rows], weight, out)
        errors.append(_relative(out, x[:rows].double(), weight.double().T))
    yield (
        f"unquantized matmul {inputs}×{outputs}, {_listed(shapes.rows)} rows",
        max(errors),
        _TF32 if half else _FLOAT32,
    )


def _attention(kernels: Kernels, shapes: KernelShapes, half: bool) -> Iterator[tuple[str, float, float]]:
    for shape in shapes.attention:
        blocks = sum(-(-stop // BLOCK_SIZE) for _, stop in shapes.spans) + 1
        batch = random_batch(shapes.spans, BLOCK_SIZE, blocks)
        rows = sum(stop - start for start, stop in shapes.spans)
        reference = ReferenceKernels(str(batch.slot_mapping.device))
        cache, exact_cache = filled_caches(kernels, reference, shape, blocks)
        qkv = torch.randn(rows, qkv_width(shape)).half().float()  # so that rounding the inputs changes nothing
        out = poisoned(rows, shape.num_heads * shape.head_dim)
        kernels.paged_attention(qkv, cache, batch, shape, out)
        exact = poisoned(*out.shape).double()
        reference.paged_attention(qkv.double(), exact_cache.double(), batch, shape, exact)
        window = f", window {shape.sliding_window}" if shape.sliding_window else ""
        what = f"attention, {shape.num_heads} heads of {shape.head_dim} on {shape.num_kv_heads}{window}"
        yield (
            f"{what}, contexts to {max(stop for _, stop in shapes.spans)}",
            _largest(out, exact),
            (_HALF if half else _FLOAT32),
        )


def _batches(kernels: Kernels, shapes: KernelShapes, half: bool) -> Iterator[tuple[str, float, float]]:
    for what, error, _ in batch_kernels_checked(kernels, shapes):
        yield what, error, _TF32 if half else _FLOAT32


def filled_caches(
    kernels: Kernels, reference: ReferenceKernels, shape: AttentionShape, blocks: int
) -> tuple[Tensor, Tensor]:
    """Caches of both with the same random keys and values, which float16 has exactly."""
    slots = torch.arange(blocks * BLOCK_SIZE, dtype=torch.int32)
    content = torch.randn(len(slots), qkv_width(shape)).half().float()
    angles = torch.zeros(len(slots), shape.head_dim // 2)
    caches = []
    for each in (kernels, reference):
        cache = each.allocate_kv_cache(blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        each.rotary_and_store_kv(content.clone(), angles.cos(), angles.sin(), cache, slots, shape)
        caches.append(cache)
    return caches[0], caches[1]


def _elementwise(kernels: Kernels, shapes: KernelShapes) -> Iterator[tuple[str, float]]:
    """Those that round nothing in any mode."""
    width, rows = shapes.matmuls[0][0], 9
    reference = ReferenceKernels(str(torch.empty(0).device))
    x, residual, weight = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    out, exact, summed = poisoned(rows, width), poisoned(rows, width).double(), residual.double()
    reference.add_rms_norm(x.double(), summed, weight.double(), 1e-5, exact)
    kernels.add_rms_norm(x, residual, weight, 1e-5, out)
    yield f"residual and norm, width {width}", _largest(out, exact)
    gate_up = torch.randn(rows, 2 * width) * 10
    exact, out = poisoned(rows, width).double(), poisoned(rows, width)
    reference.silu_and_mul(gate_up.double(), exact)
    kernels.silu_and_mul(gate_up, out)
    yield f"SwiGLU, width {width}", _largest(out, exact)
    shape = shapes.attention[0]
    qkv, angles = torch.randn(rows, qkv_width(shape)), torch.randn(rows, shape.head_dim // 2)
    slots, rotated = torch.randperm(2 * BLOCK_SIZE)[:rows].int(), []
    for each in (kernels, reference):
        cache, mine = each.allocate_kv_cache(2, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim), qkv.clone()
        each.rotary_and_store_kv(mine, angles.cos(), angles.sin(), cache, slots, shape)
        rotated.append(mine[:, : shape.num_heads * shape.head_dim])
    yield f"rotary embedding, {shape.num_heads} heads of {shape.head_dim}", _largest(rotated[0], rotated[1].double())


def _relative(found: Tensor, x: Tensor, matrix: Tensor) -> float:
    """x: [M, K], matrix: [K, N], both float64."""
    return float(((found - x @ matrix).abs() / (x.abs() @ matrix.abs())).max())


def _largest(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max())


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
