"""Shared by the training tests: a tiny random Llama on disk, its tokenizer, and examples."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.train.packing import TokenizedExample

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 260,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "eos_token_id": 257,
}


def write_base(folder: Path, seed: int = 0) -> Path:
    """config.json, model.safetensors and tokenizer.json of a byte-level toy."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.empty(*shape).normal_(0, 0.15, generator=generator)

    hidden, middle, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    kv = CONFIG["num_key_value_heads"] * head
    weights = {
        "model.embed_tokens.weight": draw(CONFIG["vocab_size"], hidden),
        "model.norm.weight": 1 + draw(hidden),
    }
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
        }.items():
            weights[f"{at}{name}.weight"] = draw(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = 1 + draw(hidden)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    task = {"task": "honeycomb", "name": "toy", "prompt": "columns-first", "surface": "json"}
    (folder / "task.json").write_text(json.dumps(task))
    return folder


def byte_tokenizer() -> Tokenizer:
    """A tokenizer with one token per byte and the special tokens of the default model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def some_examples() -> list[TokenizedExample]:
    """Three questions of different lengths about one column list."""
    prefix = tuple(range(20, 37))
    return [
        TokenizedExample((*prefix, 5, 6, 7), (40, 41, 42, 257)),
        TokenizedExample((*prefix, 8), (43, 257)),
        TokenizedExample((*prefix, 5, 9, 10, 11, 12), (44, 45, 46, 47, 48, 257)),
    ]
