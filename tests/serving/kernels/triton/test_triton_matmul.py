"""Triton's matmuls give the product of float64 at the edges of tiles, and a row has the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import poisoned, random_awq
from serving.kernels.base import AwqTensors
from serving.kernels.reference import dequantize_awq
from serving.kernels.shape_checks import KernelArgumentError
from serving.kernels.triton.tiles import TileSizes
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

pytestmark = ON_THE_GPU

ROWS = [1, 15, 16, 17, 64, 65]
# (inputs, outputs, group size): several splits and groups; one tile and less; a group that is no power of two
SHAPES = [(320, 72, 64), (128, 32, 128), (192, 40, 96), (32, 24, 32)]


def multiply_awq(kernels, weight, x):
    out = poisoned(x.shape[0], weight.out_features)
    kernels.awq_gemm(x.to(kernels.activation_dtype), weight, out)
    return out


def multiply_dense(kernels, weight, x):
    out = poisoned(x.shape[0], weight.shape[0])
    kernels.dense_gemm(x, weight, out)
    return out


def error_of(found, x, matrix):
    """The largest error relative to the sum of the absolute products. matrix: [K, N]."""
    return ((found - x.double() @ matrix).abs() / (x.double().abs() @ matrix.abs())).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_gives_the_product_with_4_bit_weights(kernels, shape):
    tensors = random_awq(*shape)
    weight, exact = kernels.pack_awq(tensors), dequantize_awq(tensors).double()
    x = torch.randn(max(ROWS), shape[0]).to(kernels.activation_dtype)
    for rows in ROWS:
        assert error_of(multiply_awq(kernels, weight, x[:rows]), x[:rows], exact) < 1e-6, rows


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_row_has_the_same_bits_in_any_batch_with_4_bit_weights(kernels, shape):
    weight = kernels.pack_awq(random_awq(*shape))
    x = torch.randn(70, shape[0])
    whole = multiply_awq(kernels, weight, x)
    for first, stop in ((0, 1), (5, 6), (31, 47), (30, 62), (2, 67), (69, 70)):
        assert torch.equal(multiply_awq(kernels, weight, x[first:stop]), whole[first:stop]), (first, stop)


@pytest.mark.parametrize("tiles", [TileSizes(), TileSizes(columns=64, warps=2), TileSizes(columns=256)], ids=str)
@pytest.mark.parametrize("group", [128, 64, 32])
def test_every_size_of_tiles_gives_the_product(half, tiles, group):
    from serving.kernels.triton.matmul import TritonMatmul

    matmul, tensors = TritonMatmul(tiles, half=half), random_awq(256, 136, group)
    x, out = torch.randn(3, 256), poisoned(3, 136)
    x = x.half() if half else x
    matmul.awq_gemm(x, matmul.pack_awq(tensors), out)
    assert error_of(out, x, dequantize_awq(tensors).double()) < 1e-6


def test_the_parts_of_a_product_add_up_to_it(kernels):
    weight = kernels.pack_awq(random_awq(320, 72, 64))
    x, count = torch.randn(20, 320), kernels.num_parts(weight)
    assert count > 1
    parts = poisoned(count, 20, 72)
    kernels.awq_gemm(x.to(kernels.activation_dtype), weight, parts)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert torch.equal(total, multiply_awq(kernels, weight, x))


def test_numbers_that_float16_does_not_have_become_its_largest_in_unquantized_products(kernels, half):
    weight, x = torch.ones(1, 32).half() / 32, torch.full((1, 32), 1e6)
    assert multiply_dense(kernels, weight, x).item() == pytest.approx(65504.0 if half else 1e6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(200, 37), (31, 64)], ids=str)
def test_unquantized_weights_give_the_product_with_the_same_bits(float32, dtype, shape):
    weight, x = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(33, shape[0])
    whole = multiply_dense(float32, weight, x)
    assert error_of(whole, x, weight.double().T) < 1e-6
    for first, stop in ((0, 1), (15, 17), (20, 33)):
        assert torch.equal(multiply_dense(float32, weight, x[first:stop]), whole[first:stop]), (first, stop)


def test_many_rows_with_unquantized_weights_have_the_bits_of_few(kernels, half):
    weight, x = torch.randn(24, 40).half(), torch.randn(65, 40)
    whole = multiply_dense(kernels, weight, x)
    assert error_of(whole, x.half() if half else x, weight.double().T) < 1e-6
    for first, stop in ((0, 1), (10, 27), (20, 60)):
        assert torch.equal(multiply_dense(kernels, weight, x[first:stop]), whole[first:stop]), (first, stop)


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
    with pytest.raises(KernelArgumentError, match="group size 8 is not a multiple of 32"):
        float32.pack_awq(AwqTensors(odd.qweight, odd.qzeros, odd.scales, 8))


def test_embedding_is_exact(float32):
    table, ids = torch.randn(50, 20).bfloat16(), torch.randint(0, 50, (33,), device=DEVICE).int()
    out = poisoned(33, 20)
    float32.embedding(ids, table, out)
    assert torch.equal(out, table[ids.long()].float())
