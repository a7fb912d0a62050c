"""Unquantized matmuls and the head: every dtype in place, any rows of the weight, the same bits always."""

from __future__ import annotations

import pytest
import torch

from serving.kernels.checks import KernelArgumentError
from tests.serving.kernels.kernel_inputs import int32, poisoned

ROWS = [*range(1, 18), 64, 65, 127, 128, 129]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(576, 257), (576, 63), (40, 66), (37, 5), (128, 1)]  # (inputs, outputs)


def multiply(kernels, weight, x, rows=None):
    out = poisoned(x.shape[0], weight.shape[0] if rows is None else rows.shape[0])
    kernels.dense_gemm(x, weight, out, rows)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_gives_the_product_with_the_same_bits(cpu_float32, shape, dtype):
    weight, x = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(129, shape[0])
    exact = x.double() @ weight.double().T
    alone = torch.cat([multiply(cpu_float32, weight, x[i : i + 1]) for i in range(129)])
    torch.testing.assert_close(alone, exact.float(), rtol=1e-5, atol=1e-4)
    for rows in ROWS:
        assert torch.equal(multiply(cpu_float32, weight, x[:rows]), alone[:rows]), rows


def test_chosen_rows_have_the_bits_of_the_whole(cpu_float32):
    weight, x = torch.randn(300, 72).half(), torch.randn(5, 72)
    whole = multiply(cpu_float32, weight, x)
    for count in (0, 1, 3, 64, 65, 300):
        rows = torch.randperm(300)[:count].int()
        assert torch.equal(multiply(cpu_float32, weight, x, rows), whole[:, rows.long()])


def test_a_part_of_a_wider_output_is_written_and_nothing_else(cpu_float32):
    weight, x = torch.randn(70, 72), torch.randn(14, 72)
    out = poisoned(14, 100)
    cpu_float32.dense_gemm(x, weight, out[:, 20:90])
    assert torch.equal(out[:, 20:90], multiply(cpu_float32, weight, x))
    assert out[:, :20].isnan().all()
    assert out[:, 90:].isnan().all()


@pytest.mark.parametrize("row", [-1, 70])
def test_a_row_that_does_not_exist_is_refused(cpu_float32, row):
    weight, x, out = torch.randn(70, 72), torch.randn(1, 72), poisoned(1, 2)
    with pytest.raises(KernelArgumentError, match="a row out of range"):
        cpu_float32.dense_gemm(x, weight, out, int32([0, row]))
    assert out.isnan().all()
