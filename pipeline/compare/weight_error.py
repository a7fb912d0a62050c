"""The relative error of each linear layer's weights, apart from scales that cancel between layers.

AWQ multiplies a channel in one layer and divides it in the layer before. So a layer behind a norm is compared with the
norm's weights multiplied in; for up_proj and down_proj, and v_proj and o_proj of the same shape, the scale of each
channel is estimated by least squares and taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pipeline.compare.plain_weights import PlainWeights
from pipeline.weights.awq_checkpoint import linear_names
from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, TensorSpec

_NORMS = {  # in front of which layers
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
_PAIRS = {"self_attn.v_proj": "self_attn.o_proj", "mlp.up_proj": "mlp.down_proj"}


def weight_errors(before: PlainWeights, after: PlainWeights) -> Iterator[tuple[str, float]]:
    """‖after - before‖ / ‖before‖ (Frobenius) of each linear layer, by name; NaN or infinite where a weight is.

    Raises:
        CheckpointError: the checkpoints have different tensors.
    """
    specs = before.specs()
    _check_same(specs, after.specs())
    for prefix in sorted({name.split("_proj")[0].rsplit(".", 2)[0] for name in linear_names(specs)}, key=_number):
        for first, second in _PAIRS.items():
            scales = _channel_scales(before, after, prefix, first, second)
            yield f"{prefix}.{first}", _error(before, after, prefix, first, outputs=scales)
            yield f"{prefix}.{second}", _error(before, after, prefix, second, inputs=scales)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
            yield f"{prefix}.{name}", _error(before, after, prefix, name)


def _number(prefix: str) -> int:
    return int(prefix.split(".")[2])


def _check_same(before: dict[str, TensorSpec], after: dict[str, TensorSpec]) -> None:
    head = {"lm_head.weight"}  # where it is tied, files may have it or not
    if different := sorted((before.keys() ^ after.keys()) - head):
        raise CheckpointError(f"only one of the checkpoints has {different[0]}; give a model and what was made of it")
    for name in sorted(before.keys() & after.keys()):
        if before[name].shape != after[name].shape:
            shapes = f"{list(before[name].shape)} and {list(after[name].shape)}"
            raise CheckpointError(f"{name} is {shapes} in the two checkpoints; give a model and what was made of it")


def _channel_scales(before: PlainWeights, after: PlainWeights, prefix: str, first: str, second: str) -> Array | None:
    """The factor of each output of `first` that brings `after` closest to `before`. [N]"""
    specs = before.specs()
    if specs[f"{prefix}.{first}.weight"].shape[0] != specs[f"{prefix}.{second}.weight"].shape[1]:
        return None  # grouped attention: AWQ has no scales there
    wanted, found = (_with_norm(weights, prefix, first) for weights in (before, after))
    products, squares = (wanted * found).sum(axis=1), (found * found).sum(axis=1)
    usable = (squares > 0) & (products > 0)
    return np.where(usable, products / np.where(usable, squares, 1), 1)


def _error(
    before: PlainWeights,
    after: PlainWeights,
    prefix: str,
    name: str,
    *,
    outputs: Array | None = None,
    inputs: Array | None = None,
) -> float:
    wanted, found = (_with_norm(weights, prefix, name) for weights in (before, after))
    if outputs is not None:
        found = found * outputs[:, None]
    if inputs is not None:
        found = found / inputs
    with np.errstate(invalid="ignore", over="ignore"):  # infinite weights
        size, difference = float(np.linalg.norm(wanted)), float(np.linalg.norm(found - wanted))
    if size == 0 and math.isfinite(difference):
        return float(difference > 0)
    return difference / size if size else difference


def _with_norm(weights: PlainWeights, prefix: str, name: str) -> Array:
    weight = weights.load(f"{prefix}.{name}.weight")
    for norm, layers in _NORMS.items():
        if name in layers:
            return weight * weights.load(f"{prefix}.{norm}.weight")
    return weight
