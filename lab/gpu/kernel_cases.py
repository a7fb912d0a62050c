"""The kernels as functions of some rows of fixed random inputs, each with its outputs in float64.

The rows of attention are those of several requests, and the rows of adapters are those of several adapters. So a part
of the rows is another batch, in which a row has other neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from lab.gpu.kernel_operands import bitmasks_of, poisoned, qkv_width, ragged_batch, random_awq
from lab.gpu.place import Place
from serving.kernels.base import AttentionShape, Kernels, MaskedProducts, QkvAdjustment
from serving.kernels.lora import QKV, LoraAdapter, LoraBatch, LoraMatrices, LoraSegment, LoraSite, Projection
from serving.kernels.reference import ReferenceKernels, dequantize_awq

BLOCK_SIZE: Final = 16
HALF: Final = 1e-3  # largest error where inputs or outputs are rounded to float16 or tf32
FLOAT32: Final = 2e-5  # and where nothing is


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel with its inputs.

    Args:
        name: of the kernel and its sizes.
        run: returns new outputs of the rows from the first number to before the second.
        exact: [rows, N] float64.
    """

    name: str
    run: Callable[[int, int], Tensor]
    exact: Tensor


@dataclass(frozen=True, slots=True)
class KernelShapes:
    """What the kernels are given.

    Args:
        rows: numbers of rows, ascending: borders of tiles.
        matmuls: inputs, outputs and group size of 4-bit weights.
        table: rows and columns of an unquantized weight.
        attention: heads and their sizes.
        spans: first position and end of the requests of attention, with as many rows as the largest of `rows`.
    """

    rows: tuple[int, ...]
    matmuls: tuple[tuple[int, int, int], ...]
    table: tuple[int, int]
    attention: tuple[AttentionShape, ...]
    spans: tuple[tuple[int, int], ...]


INTERPRETED: Final = KernelShapes(
    rows=(1, 16, 17),
    matmuls=((96, 40, 32),),
    table=(48, 72),
    attention=(AttentionShape(6, 2, 16, 21),),
    spans=((0, 2), (68, 71), (32, 33), (7, 18)),
)
REAL: Final = KernelShapes(
    rows=(1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 128, 129, 192, 255, 256),
    matmuls=(
        *((4096, 6144, 128), (4096, 4096, 128), (4096, 28672, 128), (14336, 4096, 128)),
        *((576, 960, 64), (1536, 576, 64), (896, 1152, 128)),
    ),
    table=(49152, 576),
    attention=(AttentionShape(32, 8, 128, 4096), AttentionShape(9, 3, 64, None), AttentionShape(14, 2, 64, None)),
    spans=((0, 1), (0, 130), (500, 512), (4080, 4096), (511, 513), (5000, 5001), (4500, 4594)),
)


def kernel_cases(place: Place, kernels: Kernels) -> Iterator[KernelCase]:
    """Every kernel with every shape, with fresh random inputs."""
    shapes = REAL if place.has_gpu else INTERPRETED
    rows, reference = shapes.rows[-1], ReferenceKernels(place.device)
    for inputs, outputs, group in shapes.matmuls:
        yield _awq(kernels, rows, inputs, outputs, group)
    yield _dense(kernels, rows, *shapes.table)
    yield _allowed(kernels, rows, *shapes.table)
    yield _adapters(kernels, rows, *shapes.matmuls[0][:2])
    for shape in shapes.attention:
        yield _attention(kernels, reference, shape, shapes.spans)
    yield from _elementwise(kernels, reference, rows, shapes)


def activations(kernels: Kernels, *shape: int) -> Tensor:
    """Random inputs of a matmul, which float16 has exactly."""
    return torch.randn(*shape).half().to(kernels.activation_dtype)


def _output(kernels: Kernels, rows: int, width: int) -> Tensor:
    """Poisoned, of those kernels whose outputs are inputs of matmuls."""
    return poisoned(rows, width).to(kernels.activation_dtype)


def _awq(kernels: Kernels, rows: int, inputs: int, outputs: int, group: int) -> KernelCase:
    """NaN where the sum of the parts has other bits than the whole product."""
    tensors = random_awq(inputs, outputs, group)
    weight, x = kernels.pack_awq(tensors), activations(kernels, rows, inputs)

    def run(first: int, stop: int) -> Tensor:
        out = poisoned(stop - first, outputs)
        kernels.awq_gemm(x[first:stop], weight, out)
        if (count := kernels.num_parts(weight)) == 1:
            return out
        parts = poisoned(count, stop - first, outputs)
        kernels.awq_gemm(x[first:stop], weight, parts)
        return torch.where(reduce(torch.add, parts.unbind()) == out, out, torch.nan)

    return KernelCase(f"4-bit matmul {inputs}×{outputs}", run, x.double() @ dequantize_awq(tensors).double())


def _dense(kernels: Kernels, rows: int, outputs: int, inputs: int) -> KernelCase:
    weight, x = torch.randn(outputs, inputs).half(), activations(kernels, rows, inputs)

    def run(first: int, stop: int) -> Tensor:
        out = poisoned(stop - first, outputs)
        kernels.dense_gemm(x[first:stop], weight, out)
        return out

    return KernelCase(f"unquantized matmul {inputs}×{outputs}", run, x.double() @ weight.double().T)


def _allowed(kernels: Kernels, rows: int, outputs: int, inputs: int) -> KernelCase:
    """NaN where the bits are not those of the whole product."""
    weight, x = torch.randn(outputs, inputs).half(), torch.randn(rows, inputs).half().float()
    whole = poisoned(rows, outputs)
    kernels.dense_gemm(x, weight, whole)
    counts = [(2, min(256, outputs // 4), 7)[row % 3] for row in range(rows)]
    chosen = [torch.randperm(outputs, device="cpu")[:count].sort().values for count in counts]
    most, masks = max(counts), bitmasks_of([columns.tolist() for columns in chosen], outputs)
    exact, product = torch.zeros(rows, most).double(), x.double() @ weight.double().T
    for row, columns in enumerate(chosen):
        exact[row, : len(columns)] = product[row, columns.to(x.device)]

    def run(first: int, stop: int) -> Tensor:
        count = stop - first
        with torch.device("cpu"):
            out = MaskedProducts(torch.zeros(count).int(), torch.zeros(count, most).int(), poisoned(count, most))
            kernels.masked_products(x, weight, torch.arange(first, stop, dtype=torch.int32), masks[first:stop], out)
        found = torch.zeros(count, most)
        for row, columns in enumerate(chosen[first:stop]):
            mine, same = out.products[row, : len(columns)].to(x.device), whole[first + row, columns.to(x.device)]
            found[row, : len(columns)] = torch.where(mine == same, mine, torch.nan)
        return found

    return KernelCase(f"products of up to {most} of {outputs} tokens, with the bits of all", run, exact)


def _adapters(kernels: Kernels, rows: int, inputs: int, outputs: int) -> KernelCase:
    """Some rows have no adapter: those are what they were."""
    places = [(1, 2), (2, rows // 3), (rows // 3, rows // 2), (rows // 2 + 1, rows)]
    adapters = [_adapter(rank, inputs, outputs) for rank in (3, 8, 33, 64)]
    x, before = activations(kernels, rows, inputs), torch.randn(rows, outputs * len(QKV))
    exact = before.double()
    for (first, stop), adapter in zip(places, adapters, strict=True):
        for i, one in enumerate(adapter.layers[0][projection] for projection in QKV):
            down, up = one.down.to(x.device).double(), one.up.to(x.device).double()
            exact[first:stop, i * outputs :][:, :outputs] += x[first:stop].double() @ down.T @ up * one.scaling

    def run(first: int, stop: int) -> Tensor:
        inside = [
            (max(a, first) - first, min(b, stop) - first, each) for (a, b), each in zip(places, adapters, strict=True)
        ]
        segments = tuple(LoraSegment(a, b, each) for a, b, each in inside if a < b)
        out = before[first:stop].clone()
        if segments:
            kernels.add_lora(x[first:stop], LoraBatch(segments), LoraSite(0, QKV), out)
        return out

    return KernelCase(f"adapters of ranks 3, 8, 33, 64, {inputs}×{outputs}", run, exact)


def _adapter(rank: int, inputs: int, outputs: int) -> LoraAdapter:
    """Matrices of adapters in float16, on the CPU, where they are loaded; all projections have one shape."""
    with torch.device("cpu"):
        one = LoraMatrices(torch.randn(rank, inputs).half(), torch.randn(rank, outputs).half(), 0.5)
    return LoraAdapter((tuple(one for _ in Projection),))


def _attention(
    kernels: Kernels, reference: ReferenceKernels, shape: AttentionShape, spans: tuple[tuple[int, int], ...]
) -> KernelCase:
    """The blocks of the requests are in random order, and the cache is random everywhere else."""
    rows = sum(stop - start for start, stop in spans)
    sizes = [-(-stop // BLOCK_SIZE) for _, stop in spans]
    blocks, ends = sum(sizes) + 1, list(accumulate(sizes))
    free = torch.randperm(blocks).tolist()
    tables = [free[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    cache, exact_cache = filled_caches(kernels, reference, shape, blocks)
    qkv = torch.randn(rows, qkv_width(shape)).half().float()

    def run(first: int, stop: int) -> Tensor:
        parts, of_them, start = [], [], 0
        for (begin, end), table in zip(spans, tables, strict=True):
            low, high = max(first, start), min(stop, start + end - begin)
            if low < high:
                parts.append((begin + low - start, begin + high - start))
                of_them.append(table)
            start += end - begin
        out = _output(kernels, stop - first, shape.num_heads * shape.head_dim)
        kernels.paged_attention(qkv[first:stop], cache, ragged_batch(parts, of_them, BLOCK_SIZE), shape, out)
        return out

    exact = torch.zeros(rows, shape.num_heads * shape.head_dim).double()
    batch = ragged_batch(spans, tables, BLOCK_SIZE)
    reference.paged_attention(qkv.double(), exact_cache.double(), batch, shape, exact)
    window = f", window {shape.sliding_window}" if shape.sliding_window else ""
    return KernelCase(f"attention, {shape.num_heads} heads of {shape.head_dim}{window}", run, exact)


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


def _elementwise(
    kernels: Kernels, reference: ReferenceKernels, rows: int, shapes: KernelShapes
) -> Iterator[KernelCase]:
    """Their inputs are parts, which they add up."""
    width, inner = shapes.matmuls[0][0], shapes.matmuls[-1][0]
    x, residual, weight = torch.randn(3, rows, width), torch.randn(rows, width), torch.randn(width)
    exact, summed = torch.zeros(rows, 2 * width).double(), residual.double()
    reference.add_rms_norm(x.double().sum(0), summed, weight.double(), 1e-5, exact[:, :width])
    exact[:, width:] = summed

    def norm(first: int, stop: int) -> Tensor:
        out, mine = _output(kernels, stop - first, width), residual[first:stop].clone()
        kernels.add_rms_norm(x[:, first:stop].contiguous(), mine, weight, 1e-5, out)
        return torch.cat([out.float(), mine], 1)

    yield KernelCase(f"residual and norm, width {width}", norm, exact)
    gate_up, exact = torch.randn(2, rows, 2 * inner) * 3, torch.zeros(rows, inner).double()
    reference.silu_and_mul(gate_up.double().sum(0), exact)

    def swiglu(first: int, stop: int) -> Tensor:
        out = _output(kernels, stop - first, inner)
        kernels.silu_and_mul(gate_up[:, first:stop].contiguous(), out)
        return out

    yield KernelCase(f"SwiGLU, width {inner}", swiglu, exact)
    for shape in shapes.attention:
        yield _rotary(kernels, reference, rows, shape)


def _rotary(kernels: Kernels, reference: ReferenceKernels, rows: int, shape: AttentionShape) -> KernelCase:
    """Queries with a bias, normalized and rotated; what is stored is seen by attention."""
    qkv, angles = torch.randn(2, rows, qkv_width(shape)), torch.randn(rows, shape.head_dim // 2)
    query_norm, key_norm = torch.randn(2, shape.head_dim).unbind()
    adjustment = QkvAdjustment(torch.randn(qkv_width(shape)), query_norm, key_norm)
    slots, queries = torch.randperm(rows).int(), shape.num_heads * shape.head_dim

    def adjusted(by: Kernels, mine: Tensor, first: int, stop: int) -> None:
        cache = by.allocate_kv_cache(-(-rows // BLOCK_SIZE), BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        turned = angles[first:stop]
        by.rotary_and_store_kv(mine, turned.cos(), turned.sin(), cache, slots[first:stop], shape, adjustment)

    def run(first: int, stop: int) -> Tensor:
        mine = qkv[:, first:stop].clone(memory_format=torch.contiguous_format)
        adjusted(kernels, mine, first, stop)
        return mine[0, :, :queries]

    whole = qkv.sum(0)
    adjusted(reference, whole, 0, rows)
    name = f"bias, norms and rotary embedding, {shape.num_heads} heads of {shape.head_dim}"
    return KernelCase(name, run, whole[:, :queries].double())
