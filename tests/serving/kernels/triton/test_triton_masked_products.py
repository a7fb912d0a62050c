"""Triton's products with chosen rows of a weight have the bits of the whole product, and read nothing else."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import bitmasks_of, int32, poisoned
from serving.kernels.base import MaskedProducts
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.kernels.triton.placing import ON_THE_GPU

pytestmark = ON_THE_GPU

OUTPUTS, INPUTS, MOST = 102, 200, 66  # of the weight; several splits of 128 inputs, tiles of 32 columns
# One, none, all but a few; a tile, one more and one less; the first and the last of the weight
COLUMNS = [
    [5],
    [],
    list(range(90)),
    list(range(3, 35)),
    list(range(33)),
    list(range(40, 71)),
    [0, 101],
    list(range(66)),
]
ROWS = [8, 0, 0, 3, 4, 1, 8, 2]


def multiply(kernels, x, weight, rows, columns):
    """All outputs are on the CPU, and poisoned first."""
    with torch.device("cpu"):
        count = len(rows)
        found = MaskedProducts(
            torch.full((count,), -7).int(), torch.full((count, MOST), -7).int(), poisoned(count, MOST)
        )
        kernels.masked_products(x, weight, int32(rows), bitmasks_of(columns, OUTPUTS), found)
    return found


def whole_product(kernels, x, weight):
    out = poisoned(x.shape[0], weight.shape[0])
    kernels.dense_gemm(x, weight, out)
    return out.cpu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_they_equal_those_of_the_whole_product(kernels, half, dtype):
    weight, x = torch.randn(OUTPUTS, INPUTS).to(dtype), torch.randn(9, INPUTS)
    whole = whole_product(kernels, x, weight)
    exact, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    found = multiply(kernels, x, weight, ROWS, COLUMNS)
    assert found.counts.tolist() == [len(wanted) if len(wanted) <= MOST else -1 for wanted in COLUMNS]
    for i, (row, wanted) in enumerate(zip(ROWS, COLUMNS, strict=True)):
        products = found.products[i, : len(wanted)]
        if len(wanted) > MOST:
            continue
        assert found.columns[i, : len(wanted)].tolist() == wanted
        if len(wanted) == 1:
            assert products.tolist() == [0.0]
            continue
        assert torch.equal(products, whole[row, wanted])
        error = (products - exact[row, wanted].cpu()).abs() / size[row, wanted].cpu()
        assert not wanted or error.max() < (2e-3 if half else 1e-6)


def test_the_reference_chooses_the_same(float32):
    weight, x = torch.randn(OUTPUTS, INPUTS), torch.randn(9, INPUTS)
    found, expected = multiply(float32, x, weight, ROWS, COLUMNS), MaskedProducts.empty(len(ROWS), MOST)
    with torch.device("cpu"):
        ReferenceKernels().masked_products(x.cpu(), weight.cpu(), int32(ROWS), bitmasks_of(COLUMNS, OUTPUTS), expected)
    assert torch.equal(found.counts, expected.counts)
    for i, count in enumerate(found.counts.tolist()):
        assert torch.equal(found.columns[i, : max(0, count)], expected.columns[i, : max(0, count)])
        mine, theirs = found.products[i, : max(0, count)], expected.products[i, : max(0, count)]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4)


def test_other_rows_of_x_and_of_the_weight_are_never_read(kernels):
    weight, x = torch.randn(OUTPUTS, INPUTS).half(), torch.randn(9, INPUTS)
    expected = multiply(kernels, x, weight, [4, 7], [[2, 100], [3, 4, 50]])
    others = [row for row in range(OUTPUTS) if row not in (2, 3, 4, 50, 100)]
    weight[others], x[[0, 1, 2, 3, 5, 6, 8]] = float("nan"), float("nan")
    found = multiply(kernels, x, weight, [4, 7], [[2, 100], [3, 4, 50]])
    assert torch.equal(found.products, expected.products)


def test_a_row_has_the_same_bits_alone_and_among_many(kernels):
    """More than the 64 up to which rows are multiplied in tiles."""
    weight, x = torch.randn(OUTPUTS, INPUTS).half(), torch.randn(70, INPUTS)
    columns = [[i, 40, 90] for i in range(30)] + [[i, 101] for i in range(40)]
    together = multiply(kernels, x, weight, range(70), columns)
    for i in (0, 15, 69):
        alone = multiply(kernels, x[i : i + 1], weight, [0], columns[i : i + 1])
        assert torch.equal(alone.products[0], together.products[i]), i


def test_bits_and_rows_that_do_not_exist_are_refused(float32):
    weight, x = torch.randn(OUTPUTS, INPUTS), torch.randn(9, INPUTS)
    for rows, columns, message in (([9], [[1, 2]], r"rows \[9\] of 9"), ([0], [[1, 102]], "bits beyond the 102 rows")):
        with pytest.raises(KernelArgumentError, match=message):
            multiply(float32, x, weight, rows, columns)
    with pytest.raises(KernelArgumentError, match="x has shape"):
        multiply(float32, x[:, :50].contiguous(), weight, [0], [[1, 2]])
