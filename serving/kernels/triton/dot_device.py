"""The dot of the Triton kernels, whose bits do not depend on where in a tile a row is."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a · b with float32 sums.  a: [M, K], b: [K, N], both float16 or float32.

    The interpreter's own dot is numpy's matmul, which rounds a row differently at another place in a tile.
    """
    if INTERPRETED:
        return tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], axis=1)
    else:
        return tl.dot(a, b, input_precision=PRECISION)
