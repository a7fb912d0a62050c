"""Unquantized matmuls and the head: weights of any dtype, any rows of the weight, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import bitmasks_of, int32, poisoned
from serving.kernels.base import Activations, MaskedProducts, rounds_dense
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError

ROWS = [*range(1, 18), 64, 65, 127, 128, 129]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(576, 257), (1300, 70), (576, 63), (40, 66), (37, 5), (128, 1)]  # (inputs, outputs)


def multiply(kernels, weight, x):
    out = poisoned(x.shape[0], weight.shape[0])
    kernels.dense_gemm(x, weight, out)
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


@pytest.mark.parametrize("shape", [(576, 144), (32, 16), (896, 40), (40, 64), (2176, 48), (1088, 80)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_layers_round_as_they_say_and_give_a_row_the_same_bits_in_any_batch(
    cpu, activations, library_path, shape, dtype
):
    weight, x = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(129, shape[0])
    expected, alone = poisoned(129, shape[1]), poisoned(129, shape[1])
    rounds = rounds_dense(weight, activations, has_dots=CpuLibrary(library_path, 1).has_dots)
    reference = ReferenceKernels(activations=Activations.BFLOAT16 if rounds else Activations.FLOAT32)
    reference.dense_gemm(x, reference.place_linear(weight), expected, rounds=True)
    weight = cpu.place_linear(weight)
    for i in range(129):
        cpu.dense_gemm(x[i : i + 1], weight, alone[i : i + 1], rounds=True)
    scale = x.abs() @ weight.float().abs().T  # rounding errors are relative to this
    assert ((alone - expected).abs() / scale).max() < 2e-6
    assert torch.equal(alone, multiply(cpu, weight, x)) != rounds
    wide = poisoned(129, shape[1] + 16)
    for rows in ROWS:
        for first in (0, 129 - rows):
            out = wide[first : first + rows, 8:-8]
            cpu.dense_gemm(x[first : first + rows], weight, out, rounds=True)
            assert torch.equal(out, alone[first : first + rows]), rows
    assert wide[:, :8].isnan().all()
    assert wide[:, -8:].isnan().all()


def test_tables_have_one_copy_which_is_bfloat16_where_linear_layers_are(cpu, activations):
    for dtype in DTYPES:
        table = torch.randn(70, 64).to(dtype)
        rounds = activations is Activations.BFLOAT16 and dtype is torch.float32
        placed = cpu.place_table(table)
        assert torch.equal(placed, table.bfloat16() if rounds else table)
        assert placed.dtype is (torch.bfloat16 if rounds else dtype)


def choose(kernels, weight, x, rows, bitmasks, most):
    chosen = MaskedProducts(int32([-7] * len(rows)), torch.full((len(rows), most), -7).int(), poisoned(len(rows), most))
    kernels.masked_products(x, weight, rows, bitmasks, chosen)
    return chosen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(5, 37), (300, 576)])  # the latter is enough for two threads
def test_products_of_allowed_columns_equal_those_of_the_whole_product(cpu_float32, dtype, rows, width):
    weight, x = torch.randn(333, width).to(dtype), torch.randn(31, width)
    whole = multiply(cpu_float32, weight, x)
    where = torch.randint(31, (rows,)).int()
    columns = [sorted(torch.randperm(333)[: n % 70].tolist()) for n in range(rows)]
    columns[3] = [31, 32, 63, 332]  # the highest bits of words, and the last of all
    most = 60
    chosen = choose(cpu_float32, weight, x, where, bitmasks_of(columns, 333), most)
    reference = choose(ReferenceKernels(), weight, x, where, bitmasks_of(columns, 333), most)
    for i, wanted in enumerate(columns):
        assert chosen.counts[i] == reference.counts[i] == (len(wanted) if len(wanted) <= most else -1)
        if len(wanted) <= most:
            count = len(wanted)
            assert chosen.columns[i, :count].tolist() == reference.columns[i, :count].tolist() == wanted
            expected = whole[where[i], wanted] if count > 1 else torch.zeros(count)
            assert torch.equal(chosen.products[i, :count], expected)
            torch.testing.assert_close(reference.products[i, :count], expected, rtol=1e-5, atol=1e-3)


def test_a_part_of_a_wider_output_is_written_and_nothing_else(cpu_float32):
    weight, x = torch.randn(70, 72), torch.randn(14, 72)
    out = poisoned(14, 100)
    cpu_float32.dense_gemm(x, weight, out[:, 20:90])
    assert torch.equal(out[:, 20:90], multiply(cpu_float32, weight, x))
    assert out[:, :20].isnan().all()
    assert out[:, 90:].isnan().all()


@pytest.mark.parametrize(("row", "bit"), [(-1, 0), (1, 0), (0, 70)])
def test_a_row_or_a_bit_that_does_not_exist_is_refused(cpu_float32, row, bit):
    weight, x = torch.randn(70, 72), torch.randn(1, 72)
    chosen = MaskedProducts(int32([-7, -7]), torch.full((2, 4), -7).int(), poisoned(2, 4))
    bitmasks = bitmasks_of([[0, 1], [0, bit]], 96)
    with pytest.raises(KernelArgumentError, match="a row or a bit out of range"):
        cpu_float32.masked_products(x, weight, int32([0, row]), bitmasks, chosen)
    assert chosen.products.isnan().all()
    assert (chosen.columns == -7).all() and (chosen.counts == -7).all()
