"""Triton's matmuls give the product of float64 at the edges of tiles, and a row has the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from pipeline.gpu_check.kernel_operands import poisoned, random_awq
from serving.kernels.base import AwqTensors
from serving.kernels.reference import dequantize_awq
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

pytestmark = ON_THE_GPU

ROWS = [1, 15, 16, 17, 64, 65]
# (inputs, outputs, group size): several splits and groups; one tile and less; a group that is no power of two
SHAPES = [(320, 72, 64), (128, 32, 128), (96, 40, 48), (16, 24, 16)]


def multiply_awq(kernels, weight, x):
    out = poisoned(x.shape[0], weight.out_features)
    kernels.awq_gemm(x, weight, out)
    return out


def multiply_dense(kernels, weight, x):
    out = poisoned(x.shape[0], weight.shape[0])
    kernels.dense_gemm(x, weight, out)
    return out


def error_of(found, x, matrix):
    """The largest error relative to the sum of the absolute products. matrix: [K, N]."""
    return ((found - x.double() @ matrix).abs() / (x.double().abs() @ matrix.abs())).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_gives_the_product_with_4_bit_weights(kernels, half, shape):
    tensors = random_awq(*shape)
    weight, exact = kernels.pack_awq(tensors), dequantize_awq(tensors).double()
    x = torch.randn(max(ROWS), shape[0])
    for rows in ROWS:
        inputs = x[:rows].half() if half else x[:rows]
        # With more than 64 rows, weights and outputs are rounded to float16 as well.
        most = 1e-3 if half and rows > 64 else 1e-6
        assert error_of(multiply_awq(kernels, weight, x[:rows]), inputs, exact) < most, rows


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_row_has_the_same_bits_in_any_batch_with_4_bit_weights(kernels, half, shape):
    weight = kernels.pack_awq(random_awq(*shape))
    x = torch.randn(64 if half else 70, shape[0])
    whole = multiply_awq(kernels, weight, x)
    for first, stop in ((0, 1), (5, 6), (31, 47), (30, 62), (x.shape[0] - 1, x.shape[0])):
        assert torch.equal(multiply_awq(kernels, weight, x[first:stop]), whole[first:stop]), (first, stop)


def test_dequantized_weights_are_rounded_once(kernels):
    tensors = random_awq(96, 40, 48)
    found = kernels._matmul.dequantize(kernels.pack_awq(tensors))
    assert torch.equal(found, dequantize_awq(tensors).half().T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(200, 37), (31, 64)], ids=str)
def test_unquantized_weights_give_the_product_with_the_same_bits(float32, dtype, shape):
    weight, x = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(33, shape[0])
    whole = multiply_dense(float32, weight, x)
    assert error_of(whole, x, weight.double().T) < 1e-6
    for first, stop in ((0, 1), (15, 17), (20, 33)):
        assert torch.equal(multiply_dense(float32, weight, x[first:stop]), whole[first:stop]), (first, stop)


def test_many_rows_with_unquantized_weights_are_torch_s(kernels, half):
    weight, x = torch.randn(24, 40).half(), torch.randn(65, 40)
    inputs = x.half() if half else x
    assert error_of(multiply_dense(kernels, weight, x), inputs, weight.double().T) < (1e-3 if half else 1e-6)


def test_a_part_of_a_wider_output_is_written_and_nothing_else(float32):
    weight, x = torch.randn(40, 48), torch.randn(5, 48)
    out = poisoned(5, 60)
    float32.dense_gemm(x, weight, out[:, 10:50])
    assert torch.equal(out[:, 10:50], multiply_dense(float32, weight, x))
    assert out[:, :10].isnan().all()
    assert out[:, 50:].isnan().all()


def test_bad_arguments_are_refused_before_anything_is_written(float32):
    weight = float32.pack_awq(random_awq(64, 32, 32))
    out = poisoned(2, 32)
    for x in (torch.randn(2, 65), torch.randn(2, 64).double(), torch.randn(64, 2).T, torch.randn(3, 64)):
        with pytest.raises(KernelArgumentError):
            float32.awq_gemm(x, weight, out)
    assert out.isnan().all()
    odd = random_awq(64, 32, 32)
    with pytest.raises(KernelArgumentError, match="group size 8 is not a multiple of 16"):
        float32.pack_awq(AwqTensors(odd.qweight, odd.qzeros, odd.scales, 8))


def test_embedding_is_exact(float32):
    table, ids = torch.randn(50, 20).bfloat16(), torch.randint(0, 50, (33,), device=DEVICE).int()
    out = poisoned(33, 20)
    float32.embedding(ids, table, out)
    assert torch.equal(out, table[ids.long()].float())
