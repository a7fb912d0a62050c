"""Read `config.json` of a Llama, Mistral or Qwen checkpoint, and refuse what the paged engine does not support.

Quantized weights are in AutoAWQ's format, or in compressed-tensors' packed 4-bit integers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serving.errors import WeightsError
from serving.kernels.base import AttentionShape
from serving.kernels.rope import Llama3Scaling, RopeConfig, YarnScaling

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
    """How the weights are quantized; None where they are not.

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


_MAX_POSITIONS = 2**31  # positions are int32
_QWEN3_HEAD_DIM = 128  # where config.json does not say, as transformers has it
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True, slots=True)
class Biases:
    """Which linear layers of a decoder layer have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """The architecture and dimensions of a model; `quantization` is None if its weights are not quantized."""

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
    quantization: Quantization | None
    bias: Biases = Biases()
    has_qk_norm: bool = False  # Qwen3


def read_config(weights_dir: Path) -> ModelConfig:
    """Read and check config.json.

    Raises:
        WeightsError: the file cannot be read, or has a value that this engine does not support.
    """
    path = weights_dir / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {error}; rebuild the weights") from error
    if not isinstance(data, dict):
        raise WeightsError(f"{path} is a {type(data).__name__}, expected an object; rebuild the weights")
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> ModelConfig:
    """The ModelConfig of parsed JSON; see `read_config`."""
    fields = _Fields(data)
    _refuse_unsupported(data)
    architecture = _architecture(data)
    heads = fields.positive("num_attention_heads")
    rope = _rope(data)
    hidden = fields.positive("hidden_size")
    shape = AttentionShape(
        num_heads=heads,
        num_kv_heads=fields.positive("num_key_value_heads", heads),
        head_dim=fields.positive("head_dim", _QWEN3_HEAD_DIM if architecture.startswith("Qwen3") else hidden // heads),
        sliding_window=_sliding_window(fields, data),
    )
    if heads % shape.num_kv_heads or shape.head_dim % 2:
        raise WeightsError(
            f"config.json has {heads} heads, {shape.num_kv_heads} KV heads, head_dim {shape.head_dim}: "
            "heads must be a multiple of KV heads and head_dim even"
        )
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.positive("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.positive("intermediate_size"),
        num_layers=fields.positive("num_hidden_layers"),
        attention=shape,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_position_embeddings=context_length(data),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        quantization=read_quantization(data.get("quantization_config")),
        bias=_biases(architecture, data),
        has_qk_norm=architecture == "Qwen3ForCausalLM",
    )


class _Fields:
    """Typed access to the fields of an object; errors name the field."""

    def __init__(self, data: dict[str, Any], where: str = "config.json") -> None:
        self._data = data
        self._where = where

    def positive(self, name: str, default: int | None = None) -> int:
        """A positive integer; null counts as absent."""
        value = self._data.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise WeightsError(f"{self._where} has {name} = {value!r}, expected an integer above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; null counts as absent."""
        value = self._data.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise WeightsError(f"{self._where} has {name} = {value!r}, expected a number above 0")
        return float(value)


def _architecture(data: dict[str, Any]) -> str:
    names = data.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise WeightsError(
            f"config.json names the architecture {names!r}; the paged engine supports "
            f"{', '.join(ARCHITECTURES)}: use ENGINE=vllm for others"
        )
    return str(names[0])


def _refuse_unsupported(data: dict[str, Any]) -> None:
    """Refuse values of fields that change what the model computes and are not supported."""
    if "auto_map" in data:
        raise WeightsError("config.json has auto_map (code in the checkpoint), which is never run; remove it")
    supported = {
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "use_sliding_window": False,
    }
    for name, value in supported.items():
        actual = data.get(name)
        if actual is not None and actual != value:
            raise WeightsError(
                f"config.json has {name} = {actual!r}; the paged engine only supports {value!r}: use ENGINE=vllm"
            )


def _biases(architecture: str, data: dict[str, Any]) -> Biases:
    """As transformers has it: Qwen2's are fixed, Llama and Qwen3 read `attention_bias`, and Llama `mlp_bias`."""
    if architecture == "Qwen2ForCausalLM":
        return Biases(qkv=True)
    if architecture == "MistralForCausalLM":
        return Biases()
    attention = bool(data.get("attention_bias"))
    return Biases(attention, attention, architecture == "LlamaForCausalLM" and bool(data.get("mlp_bias")))


def _sliding_window(fields: _Fields, data: dict[str, Any]) -> int | None:
    if _architecture(data) != "MistralForCausalLM" or data.get("sliding_window") is None:
        return None
    return fields.positive("sliding_window")


def context_length(data: dict[str, Any]) -> int:
    """The longest context in tokens that a config.json states, also that of a model that only vLLM runs.

    With YaRN, checkpoints state the original length or the stretched one.

    Raises:
        WeightsError: it has no such length.
    """
    stated = _Fields(data).positive("max_position_embeddings")
    parameters = data.get("rope_parameters") or data.get("rope_scaling")
    if not isinstance(parameters, dict) or "yarn" not in (parameters.get("rope_type"), parameters.get("type")):
        return stated
    scaling = _Fields(parameters, "config.json's rope parameters")
    stretched = scaling.positive("original_max_position_embeddings") * scaling.number("factor")
    if not stretched < _MAX_POSITIONS:
        raise WeightsError(f"config.json's YaRN factor stretches the context to {stretched:g} tokens")
    return max(stated, int(stretched))


def _rope(data: dict[str, Any]) -> RopeConfig:
    """Read `rope_theta` and `rope_scaling`, or `rope_parameters`, which has both in transformers 5."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise WeightsError(f"config.json has rope parameters {parameters!r}, expected an object")
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
    if kind == "yarn" and theta <= 1:
        raise WeightsError(f"config.json has rope_theta = {theta:g} with yarn, expected a number above 1")
    if kind == "yarn":
        return RopeConfig(theta, yarn=_yarn(parameters, scaling))
    raise WeightsError(
        f"config.json has rope type {kind!r}; the paged engine supports default, linear, llama3 and yarn: use "
        "ENGINE=vllm"
    )


def _yarn(parameters: dict[str, Any], fields: _Fields) -> YarnScaling:
    """YaRN's parameters, with the defaults of its paper as transformers has them."""
    factor = fields.number("factor")

    def magnitude(of_logarithm: float) -> float:
        return 0.1 * of_logarithm * math.log(factor) + 1.0 if factor > 1 else 1.0

    scales = [parameters.get(name) for name in ("mscale", "mscale_all_dim")]
    inferred = magnitude(1.0)
    if all(scales):
        inferred = magnitude(fields.number("mscale")) / magnitude(fields.number("mscale_all_dim"))
    try:
        return YarnScaling(
            factor=factor,
            original_max_position_embeddings=fields.positive("original_max_position_embeddings"),
            magnitude=fields.number("attention_factor", inferred),
            fast=fields.number("beta_fast", 32.0),
            slow=fields.number("beta_slow", 1.0),
            truncate=parameters.get("truncate", True) is not False,
        )
    except ValueError as error:
        raise WeightsError(f"config.json's rope parameters have {error}") from error
