"""Reads a Llama or Qwen2 GGUF as a Hugging Face checkpoint in fp32, and makes its tokenizer files.

checkpoint = GgufCheckpoint(Path("model.gguf")); checkpoint.load("model.norm.weight")

The tokenizer's files are written as JSON by this package, so that no release of a library can change a byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from pipeline.weights.errors import CheckpointError
from pipeline.weights.tensors import Array, TensorSpec

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# GGUF's architecture: transformers' class, and whether GGUF reorders the rows of Q and K.
_ARCHITECTURES = {"llama": ("LlamaForCausalLM", True), "qwen2": ("Qwen2ForCausalLM", False)}
Metadata = Callable[[str], Any]
# GGUF's types of tokens: control tokens, which text never becomes; additional words; unused ids.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


def hugging_face_name(gguf_name: str) -> str:
    """The name that transformers gives to a tensor of a Llama or Qwen2 GGUF."""
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    match = _BLOCK.fullmatch(gguf_name)
    if match is None or match[2] not in _IN_BLOCK:
        raise CheckpointError(f"the GGUF has a tensor {gguf_name!r}, which no Llama or Qwen2 has; convert another file")
    return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.{match[3]}"


def undo_rope_permutation(weight: Array, num_heads: int) -> Array:
    """Bring rows of Q or K from GGUF's order (pairs side by side) to Hugging Face's (halves).

    GGUF rotates dimensions (2i, 2i+1) of a head, transformers rotates (i, i + head_dim/2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


class GgufCheckpoint:
    """A GGUF's tensors, dequantized to fp32 when they are loaded, by elementwise multiplication and addition.

    Args:
        tie_head: whether embedding and head are the same matrix, which the file has twice in different precision. The
            head's copy is used for both, because quantizers keep it more precise.

    Raises:
        CheckpointError: the file has another architecture.
    """

    def __init__(self, path: Path, *, tie_head: bool = False) -> None:
        self._reader = GGUFReader(path)
        self._kind = str(self.metadata("general.architecture"))
        if self._kind not in _ARCHITECTURES:
            known = " and ".join(_ARCHITECTURES)
            raise CheckpointError(f"{path.name} has the architecture {self._kind!r}; supported are {known}")
        self._class, reorders = _ARCHITECTURES[self._kind]
        self._tensors = {hugging_face_name(tensor.name): tensor for tensor in self._reader.tensors}
        if tie_head:
            self._tensors["model.embed_tokens.weight"] = self._tensors.pop("lm_head.weight")
        names = {"q_proj": "attention.head_count", "k_proj": "attention.head_count_kv"} if reorders else {}
        self._heads = {name: int(self._own(key)) for name, key in names.items()}

    def _own(self, key: str) -> Any:
        """The value of a metadata key that starts with the architecture's name."""
        return self.metadata(f"{self._kind}.{key}")

    def metadata(self, key: str) -> Any:
        """The value of a metadata key of the file.

        Raises:
            CheckpointError: the file does not have the key.
        """
        field = self._reader.get_field(key)
        if field is None:
            raise CheckpointError(f"the GGUF lacks the metadata key {key!r}; the file is not a Llama checkpoint")
        return field.contents()

    def specs(self) -> dict[str, TensorSpec]:
        """All tensors by their Hugging Face name; GGUF stores shapes in reverse order."""
        return {
            name: TensorSpec("F32", tuple(int(size) for size in reversed(tensor.shape)))
            for name, tensor in self._tensors.items()
        }

    def load(self, name: str) -> Array:
        """The tensor in fp32."""
        tensor = self._tensors[name]
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        num_heads = self._heads.get(name.split(".")[-2])
        return array if num_heads is None else undo_rope_permutation(array, num_heads)

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        hidden_size, num_heads = int(self._own("embedding_length")), int(self._own("attention.head_count"))
        config = {
            "architectures": [self._class],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": int(self.metadata("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(self.metadata("tokenizer.ggml.eos_token_id")),
            "head_dim": hidden_size // num_heads,
            "hidden_act": "silu",
            "hidden_size": hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": int(self._own("feed_forward_length")),
            "max_position_embeddings": int(self._own("context_length")),
            "mlp_bias": False,
            "model_type": self._kind,
            "num_attention_heads": num_heads,
            "num_hidden_layers": int(self._own("block_count")),
            "num_key_value_heads": int(self._own("attention.head_count_kv")),
            "pad_token_id": int(self.metadata("tokenizer.ggml.padding_token_id")),
            "rms_norm_eps": _shortest_float(self._own("attention.layer_norm_rms_epsilon")),
            "rope_scaling": None,
            "rope_theta": _shortest_float(self._own("rope.freq_base")),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "torch_dtype": "float32",
            "use_cache": True,
            "vocab_size": self.specs()["model.embed_tokens.weight"].shape[0],
        }
        if self._kind == "qwen2":
            del config["attention_bias"], config["mlp_bias"], config["head_dim"]
            config["use_sliding_window"] = False
        return config


def _shortest_float(value: float) -> float:
    """The shortest decimal for the file's fp32 value: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def tokenizer_json(metadata: Metadata) -> dict[str, Any]:
    """The contents of tokenizer.json, which `tokenizers.Tokenizer.from_file` reads.

    Raises:
        CheckpointError: the GGUF has a kind of tokenizer that is not supported.
    """
    if metadata("tokenizer.ggml.model") != "gpt2":
        raise CheckpointError(f"tokenizer.ggml.model is {metadata('tokenizer.ggml.model')!r}; only 'gpt2' is supported")
    pre = metadata("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        known = " and ".join(map(repr, _PRE_TOKENIZERS))
        raise CheckpointError(f"tokenizer.ggml.pre is {pre!r}; supported are {known}")
    tokens, types = metadata("tokenizer.ggml.tokens"), metadata("tokenizer.ggml.token_type")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(index, tokens[index], special=kind == _CONTROL)
            for index, kind in enumerate(types)
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": _NORMALIZERS[pre],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED},
            "merges": [merge.split(" ") for merge in metadata("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(metadata: Metadata, model_max_length: int) -> dict[str, Any]:
    """The contents of tokenizer_config.json, with which any version of transformers uses tokenizer.json unchanged."""
    tokens = metadata("tokenizer.ggml.tokens")
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": tokens[metadata("tokenizer.ggml.bos_token_id")],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[metadata("tokenizer.ggml.eos_token_id")],
        "model_max_length": model_max_length,
        "pad_token": tokens[metadata("tokenizer.ggml.padding_token_id")],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _unknown_token(metadata),
    }


def chat_template(metadata: Metadata) -> str:
    """The Jinja source of the chat template."""
    return str(metadata("tokenizer.chat_template"))


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """The contents of generation_config.json: greedy, with the model's end token."""
    return {
        "bos_token_id": int(metadata("tokenizer.ggml.bos_token_id")),
        "do_sample": False,
        "eos_token_id": int(metadata("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(metadata("tokenizer.ggml.padding_token_id")),
    }


def _unknown_token(metadata: Metadata) -> str | None:
    try:
        token: str = metadata("tokenizer.ggml.tokens")[metadata("tokenizer.ggml.unknown_token_id")]
    except CheckpointError:  # byte-level vocabularies need none
        return None
    return token


def _added_token(index: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {"id": index, "content": content, **flags}


def _byte_level(*, use_regex: bool = True) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": use_regex, "use_regex": use_regex}


_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_NORMALIZERS = {"smollm": None, "qwen2": {"type": "NFC"}}
_PRE_TOKENIZERS = {
    # llama.cpp's smollm: single digits, then GPT-2's split into words.
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level()],
    # As in the tokenizer.json of Qwen2 and Qwen2.5.
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated", "invert": False},
        _byte_level(use_regex=False),
    ],
}
