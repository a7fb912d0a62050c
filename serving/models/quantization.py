"""What `quantization_config` of config.json says: AutoAWQ's format, or compressed-tensors' packed 4-bit integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from serving.errors import WeightsError

_MAX_GROUP_SIZE: Final = 4096
_REMEDY: Final = "quantize with scripts/quantize_awq or use ENGINE=vllm"
_WHERE: Final = "config.json has quantization_config"


@dataclass(frozen=True, slots=True)
class Quantization:
    """Four bits a weight, in groups along the inputs that share a scale and a zero point.

    Args:
        group_size: inputs of a group.
        compressed_tensors: the tensors are those of compressed-tensors' `pack-quantized`, else AutoAWQ's GEMM.
        symmetric: there are no zero points in the file (compressed-tensors only).
    """

    group_size: int
    compressed_tensors: bool = False
    symmetric: bool = False


def read_quantization(data: object) -> Quantization | None:
    """None where weights are not quantized.

    Raises:
        WeightsError: quantized in a way that this engine does not compute; names the field.
    """
    if data is None:
        return None
    if not isinstance(data, dict):
        raise WeightsError(f"{_WHERE} {data!r}, wanted an object")
    if data.get("quant_method") == "compressed-tensors":
        return _compressed_tensors(data)
    wanted = {"quant_method": ("awq",), "bits": (4,), "zero_point": (True,), "version": ("gemm", "GEMM")}
    for name, values in wanted.items():
        _check(name, data.get(name, values[0] if name != "quant_method" else None), values)
    return Quantization(_group_size(data.get("group_size")))


def _compressed_tensors(data: dict[str, Any]) -> Quantization:
    _check("format", data.get("format"), ("pack-quantized",))
    groups = data.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise WeightsError(f"{_WHERE}.config_groups = {groups!r}; the paged engine computes one group: {_REMEDY}")
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise WeightsError(f"{_WHERE}.config_groups without weights; {_REMEDY}")
    _check("targets", group.get("targets"), (["Linear"],))
    _check("input_activations", group.get("input_activations"), (None,))
    for name, values in {"num_bits": (4,), "type": ("int",), "strategy": ("group",)}.items():
        _check(name, weights.get(name), values)
    _check("actorder", weights.get("actorder"), (None, "weight", "static"))  # others reorder the inputs
    _check("symmetric", weights.get("symmetric"), (True, False))
    return Quantization(_group_size(weights.get("group_size")), True, bool(weights["symmetric"]))


def _check(name: str, found: object, values: tuple[object, ...]) -> None:
    if found not in values:
        wanted = " or ".join(map(repr, values))
        raise WeightsError(f"{_WHERE}: {name} = {found!r}; the paged engine computes {wanted} only: {_REMEDY}")


def _group_size(value: object) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, int) or not is_whole or value <= 0 or value % 8 or value > _MAX_GROUP_SIZE:
        raise WeightsError(
            f"{_WHERE}: group_size = {value!r}, wanted a multiple of 8 up to {_MAX_GROUP_SIZE}: {_REMEDY}"
        )
    return value
