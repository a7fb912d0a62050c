"""What `config.json` of a Llama or Mistral checkpoint says, checked.

Owns: reading it, and refusing by name what this engine does not compute. Knows nothing of tensors.

    config = read_config(Path("weights/honeycomb-nlq"))
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import WeightsError
from serving.kernels.base import AttentionShape
from serving.layers.rope import Llama3Scaling, RopeConfig

_MAX_GROUP_SIZE = 4096
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


@dataclass(frozen=True)
class ModelConfig:
    """The geometry of the model; `awq_group_size` is None when weights are not quantized."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    attention: AttentionShape
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    awq_group_size: int | None


def read_config(weights_dir: Path) -> ModelConfig:
    """Read and check config.json.

    Raises:
        WeightsError: unreadable, or something in it that this engine does not compute.
    """
    path = weights_dir / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {error}; rebuild the weights") from error
    if not isinstance(data, dict):
        raise WeightsError(f"{path} holds a {type(data).__name__}, wanted an object; rebuild the weights")
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> ModelConfig:
    """A ModelConfig from the parsed JSON; see `read_config`."""
    fields = _Fields(data)
    _refuse_unsupported(data)
    heads = fields.positive("num_attention_heads")
    hidden = fields.positive("hidden_size")
    shape = AttentionShape(
        num_heads=heads,
        num_kv_heads=fields.positive("num_key_value_heads", heads),
        head_dim=fields.positive("head_dim", hidden // heads),
        sliding_window=_sliding_window(fields, data),
    )
    if heads % shape.num_kv_heads or shape.head_dim % 2:
        raise WeightsError(
            f"config.json has {heads} heads, {shape.num_kv_heads} KV heads, head_dim {shape.head_dim}: "
            "heads must be a multiple of KV heads and head_dim even"
        )
    return ModelConfig(
        architecture=_architecture(data),
        vocab_size=fields.positive("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.positive("intermediate_size"),
        num_layers=fields.positive("num_hidden_layers"),
        attention=shape,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(data),
        max_position_embeddings=fields.positive("max_position_embeddings"),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        awq_group_size=_awq_group_size(data.get("quantization_config")),
    )


class _Fields:
    """Typed look-ups that name the field when they fail."""

    def __init__(self, data: dict[str, Any], where: str = "config.json") -> None:
        self._data = data
        self._where = where

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number above 0; null counts as absent."""
        value = self._data.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise WeightsError(f"{self._where} has {name} = {value!r}, wanted a whole number above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0; null counts as absent."""
        value = self._data.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise WeightsError(f"{self._where} has {name} = {value!r}, wanted a number above 0")
        return float(value)


def _architecture(data: dict[str, Any]) -> str:
    names = data.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise WeightsError(
            f"config.json names the architecture {names!r}; the paged engine computes "
            f"{' and '.join(ARCHITECTURES)}: use ENGINE=vllm for others"
        )
    return str(names[0])


def _refuse_unsupported(data: dict[str, Any]) -> None:
    """Fields that change what the model computes, with values that we do not."""
    if "auto_map" in data:
        raise WeightsError("config.json has auto_map (code in the checkpoint), which is never run; remove it")
    computed = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
    }
    for name, value in computed.items():
        found = data.get(name)
        if found is not None and found != value:
            raise WeightsError(
                f"config.json has {name} = {found!r}; the paged engine computes {value!r} only: "
                "use ENGINE=vllm"
            )


def _sliding_window(fields: _Fields, data: dict[str, Any]) -> int | None:
    if _architecture(data) != "MistralForCausalLM" or data.get("sliding_window") is None:
        return None
    return fields.positive("sliding_window")


def _rope(data: dict[str, Any]) -> RopeConfig:
    """`rope_theta` and `rope_scaling`, or transformers 5's `rope_parameters` that holds both."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise WeightsError(f"config.json has rope parameters {parameters!r}, wanted an object")
    theta = _Fields({**data, **parameters}).number("rope_theta", 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    scaling = _Fields(parameters, "config.json's rope parameters")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, linear_factor=scaling.number("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            llama3=Llama3Scaling(
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_max_position_embeddings=scaling.positive("original_max_position_embeddings"),
            ),
        )
    raise WeightsError(
        f"config.json has rope type {kind!r}; the paged engine computes default, linear and llama3: "
        "use ENGINE=vllm"
    )


def _awq_group_size(quantization: object) -> int | None:
    if quantization is None:
        return None
    if not isinstance(quantization, dict):
        raise WeightsError(f"config.json has quantization_config {quantization!r}, wanted an object")
    wanted = {"quant_method": ("awq",), "bits": (4,), "zero_point": (True,), "version": ("gemm", "GEMM")}
    for name, values in wanted.items():
        if quantization.get(name, values[0] if name != "quant_method" else None) not in values:
            raise WeightsError(
                f"config.json has quantization_config.{name} = {quantization.get(name)!r}; the paged engine "
                f"computes {values[0]!r} only: quantize with scripts/quantize_awq or use ENGINE=vllm"
            )
    group_size = _Fields(quantization, "config.json's quantization_config").positive("group_size")
    if group_size % 8 or group_size > _MAX_GROUP_SIZE:
        raise WeightsError(
            f"config.json has quantization_config.group_size = {group_size}, wanted a multiple of 8 up to "
            f"{_MAX_GROUP_SIZE}: quantize with scripts/quantize_awq or use ENGINE=vllm"
        )
    return group_size
