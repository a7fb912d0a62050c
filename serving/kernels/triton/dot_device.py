"""What all Triton kernels share: a dot whose bits do not depend on where in a tile a row is, and rounding."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
LARGEST_HALF = tl.constexpr(65504.0)  # of float16


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a · b with float32 sums.  a: [M, K], b: [K, N], both float16 or float32.

    The interpreter's own dot is numpy's matmul, which rounds a row differently at another place in a tile.
    """
    if INTERPRETED:
        return tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], axis=1)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def narrow(value, DTYPE: tl.constexpr):
    """A value as DTYPE, NaN too; where float32 is too large for float16 the result is the largest number of float16."""
    if value.dtype == tl.float32 and DTYPE == tl.float16:
        value = tl.maximum(value, -LARGEST_HALF, propagate_nan=tl.PropagateNan.ALL)
        value = tl.minimum(value, LARGEST_HALF, propagate_nan=tl.PropagateNan.ALL)
    return value.to(DTYPE)
