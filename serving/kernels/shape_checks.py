"""Check the arguments of kernels before they are called."""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, QkvAdjustment
from serving.kernels.lora import LoraMatrices

DENSE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class KernelArgumentError(ValueError):
    """A kernel was called with a tensor that it does not accept: a bug in this package."""


def require(condition: bool, message: str) -> None:
    """Raise KernelArgumentError unless the condition holds."""
    if not condition:
        raise KernelArgumentError(message)


def check_tensor(
    name: str,
    tensor: Tensor,
    shape: tuple[int | None, ...],
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    *,
    row_strided: bool = False,
) -> None:
    """Check a tensor's shape (None: any size), dtype and contiguity; `row_strided` allows a larger row stride.

    Raises:
        KernelArgumentError: one of them differs.
    """
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if tensor.dtype not in allowed:
        raise KernelArgumentError(f"{name} has dtype {tensor.dtype}, expected {' or '.join(map(str, allowed))}")
    matches = tensor.dim() == len(shape) and all(
        expected is None or actual == expected for actual, expected in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        raise KernelArgumentError(f"{name} has shape {list(tensor.shape)}, expected {list(shape)}")
    if tensor.is_contiguous():
        return
    if row_strided and tensor.dim() == 2 and tensor.stride(1) == 1:
        return
    raise KernelArgumentError(f"{name} has strides {tensor.stride()}, expected a contiguous tensor")


def check_metadata(metadata: AttentionMetadata, rows: int) -> None:
    """Check shapes and dtypes of a batch's metadata; the kernel checks the indices themselves.

    Raises:
        KernelArgumentError: one of them differs.
    """
    seqs = metadata.context_lens.shape[0]
    check_tensor("query_start", metadata.query_start, (seqs + 1,), torch.int32)
    check_tensor("context_lens", metadata.context_lens, (seqs,), torch.int32)
    check_tensor("block_tables", metadata.block_tables, (seqs, None), torch.int32)
    check_tensor("slot_mapping", metadata.slot_mapping, (rows,), torch.int32)


def check_adjustment(adjustment: QkvAdjustment, shape: AttentionShape) -> None:
    """Check shapes and dtypes, and that either both norms are given or neither.

    Raises:
        KernelArgumentError: one of them differs.
    """
    if adjustment.bias is not None:
        check_tensor("bias", adjustment.bias, (shape.qkv_width,), torch.float32)
    norms = {"query_norm": adjustment.query_norm, "key_norm": adjustment.key_norm}
    require(
        len({norm is None for norm in norms.values()}) == 1, "query_norm and key_norm must both be given, or neither"
    )
    for name, norm in norms.items():
        if norm is not None:
            check_tensor(name, norm, (shape.head_dim,), torch.float32)


def check_lora_matrices(matrices: LoraMatrices) -> None:
    """Check ranks and dtypes of both matrices.

    Raises:
        KernelArgumentError: one of them differs.
    """
    check_tensor("down", matrices.down, (matrices.rank, None), DENSE_DTYPES)
    check_tensor("up", matrices.up, (matrices.rank, None), matrices.down.dtype)
