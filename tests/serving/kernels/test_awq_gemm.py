"""4-bit matmuls are right at the edges of tiles, and a row has the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import poisoned, random_awq
from serving.kernels.base import Activations, AwqTensors
from serving.kernels.build import build_library
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels, dequantize_awq
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.kernels.builds import library_of

ROWS = [*range(1, 18), 64, 65, 127, 128, 129]
# (inputs, outputs, group size): the default model's, one vector more or less than a tile, tiny and odd groups
SHAPES = [(576, 960, 64), (1536, 576, 64), (128, 128, 128), (96, 136, 32), (48, 24, 8), (96, 24, 48), (2176, 40, 128)]


def multiply(kernels, weight, x):
    out = poisoned(x.shape[0], weight.out_features)
    kernels.awq_gemm(x, weight, out)
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_of_rows_gives_the_product(cpu, activations, reference, shape):
    tensors = random_awq(*shape)
    weight, exact = cpu.pack_awq(tensors), dequantize_awq(tensors).double()
    x = torch.randn(max(ROWS), shape[0])
    expected = poisoned(max(ROWS), shape[1])
    reference.awq_gemm(x, reference.pack_awq(tensors), expected)
    scale = (x.double().abs() @ exact.abs()).float()  # rounding errors are relative to this
    for rows in ROWS:
        error = (multiply(cpu, weight, x[:rows]) - expected[:rows]).abs() / scale[:rows]
        assert error.max() < 2e-6, rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(cpu, shape):
    weight = cpu.pack_awq(random_awq(*shape))
    x = torch.randn(129, shape[0])
    alone = torch.cat([multiply(cpu, weight, x[i : i + 1]) for i in range(129)])
    for rows in ROWS:
        assert torch.equal(multiply(cpu, weight, x[:rows]), alone[:rows]), rows
        assert torch.equal(multiply(cpu, weight, x[129 - rows :]), alone[129 - rows :]), rows


def test_the_number_of_threads_does_not_change_a_bit(library_path, activations):
    tensors, x = random_awq(576, 960, 64), torch.randn(67, 576)
    results = []
    for threads in (1, 2, 3, 5):
        kernels = CpuKernels(CpuLibrary(library_path, threads), activations)
        results.append(multiply(kernels, kernels.pack_awq(tensors), x))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("shape", [(576, 960, 64), (2176, 40, 128)], ids=str)
def test_eight_bits_give_the_same_bits_in_every_build(library_path, shape):
    """An answer must not depend on the processor: one instruction adds four products, or several do."""
    tensors, x = random_awq(*shape), torch.randn(29, shape[0])
    results = []
    for path in (library_path, library_of("native")):
        kernels = CpuKernels(CpuLibrary(path, 2), Activations.INT8)
        results.append(multiply(kernels, kernels.pack_awq(tensors), x))
    assert torch.equal(*results)


def test_groups_too_large_for_eight_bits_are_rounded_to_16(library_path):
    tensors, x = random_awq(1024, 32, 1024), torch.randn(3, 1024)
    results = []
    for activations in (Activations.INT8, Activations.INT16):
        kernels = CpuKernels(CpuLibrary(library_path, 2), activations)
        results.append(multiply(kernels, kernels.pack_awq(tensors), x))
    assert torch.equal(*results)


@pytest.mark.parametrize("shape", [(576, 960, 64), (1536, 576, 64), (128, 40, 128)], ids=str)
def test_tiles_give_the_bits_that_vectors_give(library_path, shape):
    """An answer must not depend on the processor."""
    if not CpuLibrary(library_path, 1).has_tiles:
        pytest.skip("no AMX here")
    paths = [build_library(flags) for flags in ((), ("-DHK_NO_AMX",))]
    assert None not in paths
    libraries = [CpuLibrary(path, 2) for path in paths]
    tensors, x = random_awq(*shape), torch.randn(401, shape[0])
    tiles, vectors = (CpuKernels(library, Activations.INT16) for library in libraries)
    for rows in (5, 15, 16, 17, 33, 401):
        expected = multiply(vectors, vectors.pack_awq(tensors), x[:rows])
        assert torch.equal(multiply(tiles, tiles.pack_awq(tensors), x[:rows]), expected), rows


def test_the_rounding_error_is_small(cpu, activations):
    tensors, x = random_awq(576, 960, 64), torch.randn(33, 576)
    exact = x.double() @ dequantize_awq(tensors).double()
    error = multiply(cpu, cpu.pack_awq(tensors), x) - exact
    most = {Activations.BFLOAT16: 3e-3, Activations.INT8: 8e-3}.get(activations, 3e-5)
    assert error.square().mean().sqrt() < most * exact.square().mean().sqrt()


def test_rows_of_zeros_and_of_huge_values_are_right(cpu):
    weight = cpu.pack_awq(random_awq(128, 64, 64))
    x = torch.randn(3, 128)
    x[1] = 0
    x[2] *= 1e30
    out = multiply(cpu, weight, x)
    assert torch.equal(out[1], torch.zeros(64))
    assert torch.isfinite(out).all()
    assert torch.equal(out[:1], multiply(cpu, weight, x[:1]))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_largest_products_do_not_overflow(cpu, activations, sign, rows):
    """All 4-bit weights are 15 and all inputs the largest of their group: no sum in few bits can be larger."""
    outputs = 24
    qweight = torch.full((256, outputs // 8), -1, dtype=torch.int32)
    zeros, scales = torch.zeros(2, outputs // 8, dtype=torch.int32), torch.ones(2, outputs, dtype=torch.float16)
    weight = cpu.pack_awq(AwqTensors(qweight, zeros, scales, 128))
    out = multiply(cpu, weight, torch.full((rows, 256), 127.0 * sign))
    assert torch.equal(out, torch.full((rows, outputs), 256 * 15 * 127.0 * sign))


def test_the_reference_rounds_as_the_kernel_does():
    tensors, x = random_awq(128, 64, 64), torch.randn(5, 128)
    kernels = ReferenceKernels(activations=Activations.INT16)
    rounded = multiply(kernels, kernels.pack_awq(tensors), x)
    exact = x @ dequantize_awq(tensors)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=1e-3, atol=1e-3)


def test_bad_arguments_are_refused_before_anything_is_written(cpu):
    weight = cpu.pack_awq(random_awq(64, 32, 32))
    out = poisoned(2, 32)
    for x in (torch.randn(2, 65), torch.randn(2, 64).double(), torch.randn(64, 2).T, torch.randn(3, 64)):
        with pytest.raises(KernelArgumentError):
            cpu.awq_gemm(x, weight, out)
    assert out.isnan().all()
    odd = random_awq(64, 32, 32)
    with pytest.raises(KernelArgumentError, match="group size 12"):
        cpu.pack_awq(AwqTensors(odd.qweight, odd.qzeros, odd.scales, 12))
