"""Writes a checkpoint of random 4-bit weights, whose tokenizer is trained on this repository's own text.

write_checkpoint(folder, MISTRAL_7B, device="cuda")
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from lab.gpu.random_model import RandomTensors
from pipeline.paths import ROOT
from serving.models.config import ModelConfig, parse_config

END: Final = "<|im_end|>"  # token 0
START: Final = "<|im_start|>"  # token 1
_TEXTS: Final = ("docs/*.md", *(f"{folder}/**/*.py" for folder in ("serving", "gateway", "pipeline", "tasks", "tests")))


def _config(group_size: int, **sizes: Any) -> Mapping[str, Any]:
    quantization = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm", "group_size": group_size}
    return MappingProxyType(
        {
            "architectures": ["MistralForCausalLM"],
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "quantization_config": quantization,
            **sizes,
        }
    )


MISTRAL_7B: Final = _config(
    128,
    vocab_size=32768,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=32768,
)
TINY: Final = _config(
    32,
    vocab_size=640,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)


def write_checkpoint(folder: Path, config: Mapping[str, Any], *, device: str = "cpu") -> None:
    """Write config.json, weights and tokenizer to a folder that exists; another device draws other weights."""
    write_tokenizer(folder, config["vocab_size"])
    write_weights(folder, config, device=device)


def write_weights(folder: Path, config: Mapping[str, Any], *, device: str = "cpu") -> None:
    """Like `write_checkpoint`, without a tokenizer."""
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    places: dict[str, str] = {}
    for number, tensors in enumerate(_shards(parse_config(dict(config)), device)):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    index = json.dumps({"weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a byte-level BPE tokenizer of up to `vocab_size` tokens; its first token ends an answer."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (path.read_text(encoding="utf-8") for pattern in _TEXTS for path in sorted(ROOT.glob(pattern)))
    backend.train_from_iterator(texts, trainer)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}', encoding="utf-8")


def _shards(config: ModelConfig, device: str) -> Iterator[dict[str, Tensor]]:
    """The tensors by name: those of each layer, then the others."""
    assert config.quantization is not None
    group, shape, hidden = config.quantization.group_size, config.attention, config.hidden_size
    inner, queries, keys = (
        config.intermediate_size,
        shape.num_heads * shape.head_dim,
        shape.num_kv_heads * shape.head_dim,
    )
    linears = {
        **{"self_attn.q_proj": (hidden, queries), "self_attn.k_proj": (hidden, keys)},
        **{"self_attn.v_proj": (hidden, keys), "self_attn.o_proj": (queries, hidden)},
        **{"mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner), "mlp.down_proj": (inner, hidden)},
    }
    random = RandomTensors(device, group)

    def drawn(dtype: torch.dtype, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {name: random.tensor(name, shape, dtype) for name, shape in shapes.items()}

    for number in range(config.num_layers):
        layer = f"model.layers.{number}."
        halves: dict[str, tuple[int, ...]] = {
            f"{layer}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")
        }
        packed: dict[str, tuple[int, ...]] = {}
        for name, (inputs, outputs) in linears.items():
            packed[f"{layer}{name}.qweight"] = (inputs, outputs // 8)
            packed[f"{layer}{name}.qzeros"] = (inputs // group, outputs // 8)
            halves[f"{layer}{name}.scales"] = (inputs // group, outputs)
        yield drawn(torch.float16, halves) | drawn(torch.int32, packed)
    table = (config.vocab_size, hidden)
    others = {"model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": (hidden,)}
    yield drawn(torch.float16, others)
