"""Whether a row has the same bits alone and among others, as lossless drafts need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.gpu_check.batch_kernels import batch_kernels_checked
from pipeline.gpu_check.finding import Figure, Finding
from pipeline.gpu_check.kernel_errors import BLOCK_SIZE, filled_caches
from pipeline.gpu_check.kernel_operands import poisoned, qkv_width, random_awq, random_batch
from pipeline.gpu_check.kernel_shapes import KernelShapes, shapes_for
from pipeline.gpu_check.place import Place
from serving.kernels.base import AttentionMetadata, AttentionShape, Kernels
from serving.kernels.reference import ReferenceKernels

_ROWS = 64  # above, DTYPE=auto multiplies with torch, whose bits may differ
_PARTS = ((0, 1), (15, 17), (30, 62), (63, 64))


def row_bits(place: Place) -> Finding:
    """How many numbers of a row differ from the same row's in another batch; right is none."""
    figures = list[Figure]()
    torch.manual_seed(2)
    with torch.device(place.torch_name), torch.inference_mode():
        shapes = shapes_for(place)
        for kernels, _, name in place.precisions():
            found = [*_matmuls(kernels, shapes), *_attention(kernels, shapes)]
            found += [(what, count) for what, _, count in batch_kernels_checked(kernels, shapes)]
            figures += [Figure(f"{what}, {name}", float(count), "numbers differ", 0.0) for what, count in found]
    how = () if place.has_gpu else ("bits of a GPU's tensor cores: this machine has no GPU",)
    return Finding(tuple(figures), not_run=how)


def _matmuls(kernels: Kernels, shapes: KernelShapes) -> Iterator[tuple[str, int]]:
    for inputs, outputs, group in shapes.matmuls:
        weight = kernels.pack_awq(random_awq(inputs, outputs, group))
        count = _differing(lambda x, out, w=weight: kernels.awq_gemm(x, w, out), inputs, outputs)  # type: ignore[misc]
        yield f"4-bit matmul {inputs}×{outputs}", count
    outputs, inputs = shapes.table
    table = torch.randn(outputs, inputs).half()
    count = _differing(lambda x, out: kernels.dense_gemm(x, table, out), inputs, outputs)
    yield f"unquantized matmul {inputs}×{outputs}", count


def _differing(multiply: Callable[[Tensor, Tensor], None], inputs: int, outputs: int) -> int:
    """Numbers of some rows that differ when only those rows are multiplied."""
    x, whole = torch.randn(_ROWS, inputs), poisoned(_ROWS, outputs)
    multiply(x, whole)
    count = int(whole.isnan().sum())
    for first, stop in _PARTS:
        part = poisoned(stop - first, outputs)
        multiply(x[first:stop], part)
        count += int((part != whole[first:stop]).sum())
    return count


def _attention(kernels: Kernels, shapes: KernelShapes) -> Iterator[tuple[str, int]]:
    """A request's last rows, in one chunk and one by one, and with another request before them."""
    for shape in shapes.attention:
        end = max(stop for _, stop in shapes.spans)
        blocks = 2 * -(-end // BLOCK_SIZE) + 1
        cache, _ = filled_caches(kernels, ReferenceKernels(str(torch.empty(0).device)), shape, blocks)
        whole = random_batch([(end - 10, end)], BLOCK_SIZE, blocks)
        qkv = torch.randn(10, qkv_width(shape))
        expected = _attend(kernels, qkv, cache, whole, shape)
        count = int(expected.isnan().sum())
        for first, stop in ((0, 1), (3, 9), (9, 10)):
            last = end - 10 + stop
            mine = _at(whole, [(end - 10 + first, last)], 0)
            alone = _attend(kernels, qkv[first:stop], cache, mine, shape)
            beside = _at(whole, [(0, 3), (end - 10 + first, last)], 1)
            rows = torch.cat([torch.randn(3, qkv_width(shape)), qkv[first:stop]])
            among = _attend(kernels, rows, cache, beside, shape)[3:]
            count += int((alone != expected[first:stop]).sum()) + int((among != expected[first:stop]).sum())
        yield f"attention, {shape.num_heads} heads of {shape.head_dim}, context {end}", count


def _at(whole: AttentionMetadata, spans: list[tuple[int, int]], place: int) -> AttentionMetadata:
    """A batch of these spans, of which the one at `place` has the blocks of the only request of `whole`."""
    width = whole.block_tables.shape[1]
    batch = random_batch(spans, BLOCK_SIZE, sum(-(-stop // BLOCK_SIZE) for _, stop in spans))
    tables = torch.zeros(len(spans), width, dtype=torch.int32)
    tables[place] = whole.block_tables[0]
    return replace(batch, block_tables=tables)


def _attend(kernels: Kernels, qkv: Tensor, cache: Tensor, batch: AttentionMetadata, shape: AttentionShape) -> Tensor:
    out = poisoned(qkv.shape[0], shape.num_heads * shape.head_dim)
    kernels.paged_attention(qkv, cache, batch, shape, out)
    return out
