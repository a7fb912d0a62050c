"""config.json: which fields are read, and which values are refused by name."""

from __future__ import annotations

import json

import pytest

from serving.errors import WeightsError
from serving.models.config import Quantization, parse_config, read_config

SMOL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "quantization_config": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 64,
        "zero_point": True,
        "version": "gemm",
    },
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def packed(**weights):
    """The configuration that llm-compressor writes for 4-bit weights and 16-bit activations."""
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "actorder": None}
    group = {"targets": ["Linear"], "weights": scheme | weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_of_four_bits_are_read(symmetric):
    config = parse_config({**SMOL, "quantization_config": packed(symmetric=symmetric)})
    assert config.quantization == Quantization(128, compressed_tensors=True, symmetric=symmetric)


def test_a_checkpoint_of_the_hub_is_read():
    config = parse_config(SMOL)
    assert (config.attention.num_heads, config.attention.num_kv_heads, config.attention.head_dim) == (
        9,
        3,
        64,
    )
    assert (config.quantization.group_size, config.rope.theta, config.tie_word_embeddings) == (64, 100000.0, True)
    assert config.attention.sliding_window is None


def test_absent_fields_have_the_defaults_of_transformers():
    without = {key: SMOL[key] for key in SMOL if key not in ("num_key_value_heads", "tie_word_embeddings")}
    config = parse_config({**without, "quantization_config": None, "sliding_window": 5})
    assert config.attention.num_kv_heads == 9
    assert not config.tie_word_embeddings
    assert config.quantization is None
    assert config.attention.sliding_window is None  # Llama has none, even if the file says so


def test_rope_parameters_of_transformers_5_are_read():
    parameters = {"rope_type": "linear", "rope_theta": 7.0, "factor": 2.0}
    config = parse_config({**SMOL, "rope_theta": None, "rope_parameters": parameters})
    assert (config.rope.theta, config.rope.linear_factor) == (7.0, 2.0)


@pytest.mark.parametrize("stated", [32768, 131072])
def test_yarn_stretches_the_context_whichever_length_the_file_states(stated):
    config = parse_config({**SMOL, "max_position_embeddings": stated, "rope_scaling": YARN})
    assert config.max_position_embeddings == 131072


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "None"),
        ({"auto_map": {"AutoModel": "x.y"}}, "auto_map"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {**YARN, "factor": 0}}, "factor = 0"),
        ({"rope_scaling": {**YARN, "factor": 1e308}}, "factor stretches the context"),
        ({"rope_scaling": {**YARN, "beta_fast": 1}}, "beta_fast = 1 is not above beta_slow = 1"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": ["linear"]}, "linear"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "576"}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"num_key_value_heads": 4}, "4 KV heads"),
        ({"head_dim": 63}, "head_dim 63"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {**SMOL["quantization_config"], "bits": 8}}, "bits"),
        ({"quantization_config": {**SMOL["quantization_config"], "version": "gemv"}}, "gemv"),
        ({"quantization_config": {**SMOL["quantization_config"], "zero_point": False}}, "zero_point"),
        ({"quantization_config": {**SMOL["quantization_config"], "group_size": -1}}, "group_size"),
        ({"quantization_config": {**SMOL["quantization_config"], "group_size": 12}}, "group_size"),
        ({"quantization_config": {}}, "quant_method"),
        ({"quantization_config": "awq"}, "awq"),
        ({"quantization_config": packed(num_bits=8)}, "num_bits"),
        ({"quantization_config": packed(strategy="channel")}, "strategy"),
        ({"quantization_config": packed(actorder="group")}, "actorder"),
        ({"quantization_config": packed(group_size=None)}, "group_size"),
        ({"quantization_config": packed() | {"format": "float-quantized"}}, "format"),
        ({"quantization_config": packed() | {"config_groups": {}}}, "config_groups"),
    ],
)
def test_unsupported_options_are_refused_by_name(change, named):
    with pytest.raises(WeightsError, match=named):
        parse_config({**SMOL, **change})


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00\xff", "null"])
def test_a_broken_file_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"config\.json"):
        read_config(tmp_path)


def test_each_missing_field_is_a_weights_error_or_has_a_default(tmp_path):
    for name in SMOL:
        rest = {key: value for key, value in SMOL.items() if key != name}
        (tmp_path / "config.json").write_text(json.dumps(rest))
        try:
            read_config(tmp_path)
        except WeightsError as error:
            assert name in str(error) or name == "architectures"
