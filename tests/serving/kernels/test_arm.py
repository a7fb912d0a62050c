"""The kernels compiled for ARM give the results of the reference and, with vectors of the same width, those of x86."""

from __future__ import annotations

import pytest
import torch

from lab.gpu.kernel_operands import poisoned, qkv_width, random_awq, random_batch
from serving.kernels.base import Activations, AttentionShape, DecoderLayerWeights, DecoderWeights
from serving.kernels.cpu import CpuKernels
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels, dequantize_awq
from serving.kernels.rope import RopeConfig, RotaryTable
from serving.kernels.structs import awq_struct, dtype_code, shape_struct
from tests.serving.kernels import builds
from tests.serving.kernels.arm import ArmDriver, build_driver, require_tools

# Flags and emulated processor: without dot products, with those of int8 and of bfloat16, and plain C++, which takes
# long to optimize. "cortex-a72" has no dot products: an instruction that it lacks kills the process.
BUILDS = {
    "neon": (("-march=armv8-a", "-O1"), "cortex-a72"),
    "dot products": (("-march=armv8.2-a+dotprod+bf16", "-O1"), "max"),
    "plain": (("-march=armv8-a", "-O0", "-DHK_GENERIC"), "cortex-a72"),
}
ROWS = [1, 3, 4, 5, 6, 7, 12, 13, 26]  # around the heights of tiles
# (inputs, outputs, group size): several strips, one vector more or less than a tile, tiny groups
AWQ_SHAPES = [(192, 136, 64), (96, 72, 32), (48, 24, 8)]
ROUNDINGS = [Activations.FLOAT32, Activations.INT16, Activations.INT8]
REFERENCE = ReferenceKernels()


@pytest.fixture(scope="module", params=BUILDS)
def arm(request, tmp_path_factory):
    require_tools()
    flags, processor = BUILDS[request.param]
    return ArmDriver(build_driver(flags, tmp_path_factory.mktemp("arm")), processor)


@pytest.fixture(scope="module")
def x86():
    """The library of this machine that has vectors of 8 floats."""
    library = CpuLibrary(builds.library_of("avx2" if "avx2" in builds.BUILDS else "native"), 2)
    assert library.vector_width == 8
    return library


def awq_arguments(tensors, weight, activations):
    sizes = (weight.in_features, weight.out_features, weight.group_size, awq_struct(weight, activations).inputs)
    return tensors.qweight, tensors.qzeros, tensors.scales, *sizes


def batch_arguments(batch, num_blocks, block_size):
    return batch.query_start, batch.context_lens, batch.block_tables, num_blocks, block_size


def shape_arguments(shape, activations):
    struct = shape_struct(shape, activations)
    return struct.heads, struct.kv_heads, struct.head_dim, struct.window, struct.inputs


@pytest.mark.parametrize("activations", ROUNDINGS)
@pytest.mark.parametrize("shape", AWQ_SHAPES, ids=str)
def test_four_bit_matmuls_have_the_bits_of_x86(arm, x86, shape, activations):
    tensors, kernels, reference = random_awq(*shape), CpuKernels(x86, activations), ReferenceKernels("cpu", activations)
    weight, exact = kernels.pack_awq(tensors), dequantize_awq(tensors)
    inputs = [torch.randn(rows, shape[0]) for rows in ROWS]
    outputs = arm.run("awq", *awq_arguments(tensors, weight, activations), len(ROWS), *inputs)
    for x, output in zip(inputs, outputs, strict=True):
        expected, close = poisoned(len(x), shape[1]), poisoned(len(x), shape[1])
        kernels.awq_gemm(x, weight, expected)
        reference.awq_gemm(x, reference.pack_awq(tensors), close)
        found = output.view_as(expected)
        assert torch.equal(found, expected), len(x)
        assert ((found - close).abs() / (x.abs() @ exact.abs())).max() < 2e-6, len(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(72, 67), (37, 5)], ids=str)
def test_unquantized_matmuls_have_the_bits_of_x86(arm, x86, shape, dtype):
    weight, x = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(13, shape[0])
    expected = poisoned(13, shape[1])
    CpuKernels(x86).dense_gemm(x, weight, expected)
    found = arm.run("dense", weight, x, dtype_code(dtype), *shape)[0].view_as(expected)
    assert torch.equal(found, expected)
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("block_size", [16, 8, 7])
@pytest.mark.parametrize("shape", [AttentionShape(9, 3, 32, None), AttentionShape(4, 2, 24, 21)], ids=str)
def test_rotary_embedding_and_attention_have_the_bits_of_x86(arm, x86, shape, block_size):
    batch = random_batch([(0, 1), (0, 17), (0, 70)], block_size, 16)
    rows, half = 88, shape.head_dim // 2
    qkv, angles = torch.randn(rows, qkv_width(shape)), torch.randn(rows, half)
    results = []
    for kernels in (CpuKernels(x86), REFERENCE):
        cache, rotated = kernels.allocate_kv_cache(16, block_size, shape.num_kv_heads, shape.head_dim), qkv.clone()
        kernels.rotary_and_store_kv(rotated, angles.cos(), angles.sin(), cache, batch.slot_mapping, shape)
        results.append(poisoned(rows, shape.num_heads * shape.head_dim))
        kernels.paged_attention(rotated, cache, batch, shape, results[-1])
    [found] = arm.run(
        *("attention", qkv, angles.cos(), angles.sin(), batch.slot_mapping),
        *batch_arguments(batch, 16, block_size),
        *shape_arguments(shape, Activations.FLOAT32),
    )
    expected, close = results
    assert torch.equal(found.view_as(expected), expected)
    torch.testing.assert_close(found.view_as(close), close, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activations", ROUNDINGS)
def test_a_whole_layer_has_the_bits_of_x86(arm, x86, activations):
    """Also the product of down and activation that is never written to memory."""
    kernels, shape, hidden, inner = CpuKernels(x86, activations), AttentionShape(3, 1, 32, None), 96, 136
    sizes = [(hidden, 160, 32), (hidden, hidden, 32), (hidden, 2 * inner, 32), (inner, hidden, 8)]
    tensors = [random_awq(*size) for size in sizes]
    packed = [kernels.pack_awq(one) for one in tensors]
    embedding, norm, rotary = torch.randn(50, hidden).half(), torch.rand(hidden) + 0.5, RotaryTable(RopeConfig(1e4), 32)
    rotary.grow(26)
    layer = DecoderLayerWeights(norm, packed[0], packed[1], norm, packed[2], packed[3])
    batch = random_batch([(0, 1), (0, 17), (0, 26)], 16, 8)
    ids, positions = torch.randint(50, (44,)).int(), torch.cat([torch.arange(n) for n in (1, 17, 26)]).int()
    plan = kernels.plan_decoder(embedding, DecoderWeights((layer,), norm, shape, hidden, inner, 1e-5), rotary)
    expected = poisoned(44, hidden)
    plan.run(ids, positions, [kernels.allocate_kv_cache(8, 16, 1, 32)], batch, expected)
    weights = [awq_arguments(*pair, activations) for pair in zip(tensors, packed, strict=True)]
    [found] = arm.run(
        *("decode", ids, positions, batch.slot_mapping, embedding, *rotary.tables, norm),
        *(argument for weight in weights for argument in weight),
        *batch_arguments(batch, 8, 16),
        *shape_arguments(shape, activations),
    )
    assert torch.equal(found.view_as(expected), expected)


@pytest.mark.parametrize("width", [96, 20, 1])
def test_norms_and_activation_have_the_bits_of_x86(arm, x86, width):
    kernels, x, residual, weight = CpuKernels(x86), torch.randn(9, width), torch.randn(9, width), torch.randn(width)
    summed, normed = residual.clone(), poisoned(9, width)
    kernels.add_rms_norm(x, summed, weight, 1e-5, normed)
    found = arm.run("add_norm", x, residual, weight)
    assert torch.equal(found[0].view_as(summed), summed)
    assert torch.equal(found[1].view_as(normed), normed)
    gate_up, active, close = torch.randn(9, 2 * width) * 30, poisoned(9, width), poisoned(9, width)
    kernels.silu_and_mul(gate_up, active)
    REFERENCE.silu_and_mul(gate_up, close)
    [found_active] = arm.run("activate", gate_up, 9)
    assert torch.equal(found_active.view_as(active), active)
    torch.testing.assert_close(found_active.view_as(close), close, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 70])
def test_attention_of_the_draft_model_is_right_but_for_rounding_to_bfloat16(arm, count):
    query, keys, values = torch.randn(32) * 0.2, torch.randn(count, 32), torch.randn(count, 32)
    rounded = [one.bfloat16().double() for one in (query, keys, values)]
    expected = (rounded[1] @ rounded[0]).softmax(0) @ rounded[2]
    [found] = arm.run("draft_attention", query, keys, values)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)  # weights are rounded to 8 bits
