"""Round weights to NF4 and back as bitsandbytes does for QLoRA (Dettmers et al. 2023), in numpy.

rounded = round_trip(weight, block_factors(block_maxima(weight), double=True))
"""

from __future__ import annotations

import numpy as np

from pipeline.weights.tensors import Array

BLOCK = 64  # weights that share one absolute maximum
_MAXIMA_BLOCK = 256  # absolute maxima that share one, with double quantization
_LEAST = np.float32(1e-38)  # instead of a division by zero
# The 16 values of bitsandbytes, as float32.
_CODE = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    dtype=np.float32,
)
_BOUNDS = (_CODE[:-1] + _CODE[1:]) / 2


def block_maxima(weights: Array) -> Array:
    """The absolute maximum of each block of 64 weights in their order; the last block may be shorter."""
    return _maxima(weights.reshape(-1), BLOCK)


def block_factors(maxima: Array, *, double: bool) -> Array:
    """The factor of each block of a tensor, float32: its maximum; with `double`, rounded to 8 bits as QLoRA does."""
    return _double_quantized(maxima) if double else maxima


def round_trip(weights: Array, factors: Array) -> Array:
    """The weights rounded to NF4, in float32; they are whole blocks, and `factors` begin with those of their blocks."""
    flat = weights.reshape(-1).astype(np.float32, copy=False)
    maxima = block_maxima(flat)
    scaled = _scaled(flat, maxima, BLOCK)
    index = np.zeros(flat.shape, dtype=np.uint8)
    for bound in _BOUNDS:  # many times faster than a binary search for each weight
        index += scaled > bound
    return np.asarray(_CODE[index] * np.repeat(factors[: len(maxima)], BLOCK)[: len(flat)]).reshape(weights.shape)


def _double_quantized(maxima: Array) -> Array:
    """The block maxima rounded to 8 bits around their mean, in blocks of 256."""
    mean = np.float32(maxima.mean(dtype=np.float64))
    centred = maxima - mean
    outer = _maxima(centred, _MAXIMA_BLOCK)
    scaled = _scaled(centred, outer, _MAXIMA_BLOCK)
    index = np.searchsorted((_DYNAMIC[:-1] + _DYNAMIC[1:]) / 2, scaled)
    return np.asarray(_DYNAMIC[index] * np.repeat(outer, _MAXIMA_BLOCK)[: len(maxima)] + mean)


def _maxima(flat: Array, block: int) -> Array:
    magnitudes = np.abs(flat).astype(np.float32, copy=False)
    return np.maximum.reduceat(magnitudes, np.arange(0, len(flat), block)) if len(flat) else magnitudes


def _scaled(flat: Array, maxima: Array, block: int) -> Array:
    """The values as fractions of their block's maximum, from -1 to 1."""
    inverse = np.float32(1) / np.maximum(maxima, _LEAST)
    scaled = flat * np.repeat(inverse, block)[: len(flat)]
    return np.clip(scaled, -1, 1, out=scaled)


def _dynamic_code() -> Array:
    """The 256 values of bitsandbytes' signed 8-bit dynamic type (Dettmers 2015), sorted, as float32."""
    values = [0.0, 1.0]
    for exponent in range(7):
        bounds = np.linspace(0.1, 1, 2**exponent + 1)
        magnitudes = 10.0 ** (exponent - 6) * (bounds[:-1] + bounds[1:]) / 2
        values += [*magnitudes, *-magnitudes]
    return np.array(sorted(values), dtype=np.float32)


_DYNAMIC = _dynamic_code()
