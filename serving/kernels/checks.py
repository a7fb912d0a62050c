"""What a kernel's wrapper checks before it launches.

Owns: the checks and their words. Knows nothing of what kernels compute.

    check_tensor("x", x, (rows, None), torch.float32)
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.kernels.base import AttentionMetadata

DENSE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class KernelArgumentError(ValueError):
    """A tensor that a kernel cannot take; the caller in this package is wrong."""


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
    """Check shape (None: any), dtype and contiguity; row_strided lets rows lie further apart."""
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if tensor.dtype not in allowed:
        raise KernelArgumentError(f"{name} has dtype {tensor.dtype}, wanted {' or '.join(map(str, allowed))}")
    matches = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        raise KernelArgumentError(f"{name} has shape {list(tensor.shape)}, wanted {list(shape)}")
    if tensor.is_contiguous():
        return
    if row_strided and tensor.dim() == 2 and tensor.stride(1) == 1:
        return
    raise KernelArgumentError(f"{name} has strides {tensor.stride()}, wanted contiguous")


def check_metadata(metadata: AttentionMetadata, rows: int) -> None:
    """Shapes and dtypes; what the numbers point to is the kernel's to check."""
    seqs = metadata.context_lens.shape[0]
    check_tensor("query_start", metadata.query_start, (seqs + 1,), torch.int32)
    check_tensor("context_lens", metadata.context_lens, (seqs,), torch.int32)
    check_tensor("block_tables", metadata.block_tables, (seqs, None), torch.int32)
    check_tensor("slot_mapping", metadata.slot_mapping, (rows,), torch.int32)
