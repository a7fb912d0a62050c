"""ctypes versions of the structs in cpp/*.h, and functions that fill them from tensors.

A struct only holds addresses: its creator must keep the tensors alive.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from serving.kernels.base import (
    BFLOAT16_GROUPS,
    INT8_MAX_GROUP,
    Activations,
    AttentionMetadata,
    AttentionShape,
    AwqWeight,
    DenseWeight,
    LinearWeight,
    QkvAdjustment,
    rounds_dense,
)

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_INPUTS = {Activations.FLOAT32: 0, Activations.INT16: 1, Activations.BFLOAT16: 2, Activations.INT8: 3}  # Inputs
MAX_PARTS = 3  # projections in one matmul: queries, keys and values


class CShape(Structure):
    """The struct `AttentionShape` of cpp/kv_cache.h, field by field."""

    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("inputs", c_int32),
    )


class CAwq(Structure):
    """The struct `Awq` of cpp/awq.h, field by field."""

    _fields_ = (
        ("quants", c_void_p),
        ("zeros", c_void_p),
        ("scales", c_void_p),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("group", c_int64),
        ("inputs", c_int64),
    )


class CDense(Structure):
    """The struct `Dense` of cpp/dense.h, field by field."""

    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("inputs", c_int32),
        ("in_features", c_int64),
        ("out_features", c_int64),
    )


class CScreen(Structure):
    """The struct `Screen` of cpp/screen.h, field by field."""

    _fields_ = (("awq", CAwq), ("errors", c_void_p), ("norms", c_void_p))


class CMaskedProducts(Structure):
    """The struct `MaskedProducts` of cpp/dense.h, field by field."""

    _fields_ = (
        ("rows", c_void_p),
        ("bits", c_void_p),
        ("count", c_int64),
        ("words", c_int64),
        ("capacity", c_int64),
        ("counts", c_void_p),
        ("columns", c_void_p),
        ("out", c_void_p),
    )


class CLinear(Structure):
    """The struct `Linear` of cpp/decoder.h, field by field."""

    _fields_ = (("awq", CAwq), ("parts", c_int64), ("dense", CDense * MAX_PARTS), ("bias", c_void_p))


class CQkvAdjustment(Structure):
    """QkvAdjustment of cpp/qkv.h; pointers are null for what an architecture does not have."""

    _fields_ = (("bias", c_void_p), ("query_norm", c_void_p), ("key_norm", c_void_p), ("eps", c_float))


class CLayer(Structure):
    """The struct `Layer` of cpp/decoder.h, field by field."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("qkv", POINTER(CLinear)),
        ("output", POINTER(CLinear)),
        ("gate_up", POINTER(CLinear)),
        ("down", POINTER(CLinear)),
        ("adjustment", CQkvAdjustment),
    )


class CDecoder(Structure):
    """The struct `Decoder` of cpp/decoder.h, field by field."""

    _fields_ = (
        ("embedding", c_void_p),
        ("dtype", c_int32),
        ("vocab", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("num_angles", c_int64),
        ("layers", POINTER(CLayer)),
        ("num_layers", c_int64),
        ("final_norm", c_void_p),
        ("shape", CShape),
        ("hidden", c_int64),
        ("intermediate", c_int64),
        ("eps", c_float),
    )


class CBatch(Structure):
    """The struct `Batch` of cpp/attention.h, field by field."""

    _fields_ = (
        ("tokens", c_int64),
        ("seqs", c_int64),
        ("max_blocks", c_int64),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
    )


class CPass(Structure):
    """The struct `Pass` of cpp/decoder.h, field by field."""

    _fields_ = (
        ("ids", c_void_p),
        ("positions", c_void_p),
        ("kv_caches", POINTER(c_void_p)),
        ("slot_mapping", c_void_p),
        ("batch", CBatch),
        ("workspace", c_void_p),
        ("out", c_void_p),
        ("lora", c_void_p),
    )


def shape_struct(shape: AttentionShape, activations: Activations) -> CShape:
    """The dimensions of attention; C++ writes 0 for "no sliding window"."""
    heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
    return CShape(*heads, shape.sliding_window or 0, _INPUTS[activations])


def adjustment_struct(adjustment: QkvAdjustment | None) -> CQkvAdjustment:
    """The addresses of an adjustment's tensors."""
    if adjustment is None:
        return CQkvAdjustment()
    tensors = (adjustment.bias, adjustment.query_norm, adjustment.key_norm)
    return CQkvAdjustment(*(None if t is None else t.data_ptr() for t in tensors), adjustment.eps)


def awq_struct(weight: AwqWeight, activations: Activations) -> CAwq:
    """A packed weight and the rounding of its inputs."""
    if activations is Activations.BFLOAT16 and weight.group_size % BFLOAT16_GROUPS:
        activations = Activations.INT16
    if activations is Activations.INT8 and weight.group_size > INT8_MAX_GROUP:
        activations = Activations.INT16
    return CAwq(
        weight.quants.data_ptr(),
        weight.zeros.data_ptr(),
        weight.scales.data_ptr(),
        weight.in_features,
        weight.out_features,
        weight.group_size,
        _INPUTS[activations],
    )


def dense_struct(weight: Tensor, activations: Activations = Activations.FLOAT32) -> CDense:
    """A dense weight [N, K] and the rounding of its inputs, for which `Kernels.place_linear` has prepared it."""
    # The library itself ignores INT8 without dot products.
    rounds = weight.dtype is torch.bfloat16 and rounds_dense(weight, activations, has_dots=True)
    inputs = activations if rounds else Activations.FLOAT32
    return CDense(weight.data_ptr(), _DTYPES[weight.dtype], _INPUTS[inputs], weight.shape[1], weight.shape[0])


def linear_struct(weight: LinearWeight, activations: Activations, bias: Tensor | None = None) -> CLinear:
    """A linear layer: its weight of either kind and its bias [N]."""
    added = None if bias is None else bias.data_ptr()
    if isinstance(weight, DenseWeight):
        parts = [dense_struct(part, activations) for part in weight.parts]
        return CLinear(CAwq(), len(parts), (CDense * MAX_PARTS)(*parts), added)
    return CLinear(awq_struct(weight, activations), 0, (CDense * MAX_PARTS)(), added)


def batch_struct(metadata: AttentionMetadata, tokens: int, num_blocks: int, block_size: int) -> CBatch:
    """The metadata of a batch without its slots, which are a separate argument."""
    return CBatch(
        tokens,
        metadata.context_lens.shape[0],
        metadata.block_tables.shape[1],
        num_blocks,
        block_size,
        metadata.query_start.data_ptr(),
        metadata.context_lens.data_ptr(),
        metadata.block_tables.data_ptr(),
    )


def dtype_code(dtype: torch.dtype) -> int:
    """The number of a dtype in `DType` of cpp/elementwise.h."""
    return _DTYPES[dtype]
