"""tokenizer.json and its small companions, from what a GGUF holds.

Owns: the byte-level BPE pipeline that `tokenizer.ggml.pre = smollm` stands for, and which tokens
are special. Written as plain JSON, so that no library's serializer decides a byte. Knows nothing
of weights.

    tokenizer = tokenizer_json(checkpoint.metadata)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import CheckpointError

Metadata = Callable[[str], Any]
_CONTROL = 3  # GGUF's token type for tokens that text must never become


def tokenizer_json(metadata: Metadata) -> dict[str, Any]:
    """The file that `tokenizers.Tokenizer.from_file` reads."""
    for key, expected in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if metadata(key) != expected:
            raise CheckpointError(f"{key} is {metadata(key)!r}; only {expected!r} is understood")
    tokens = metadata("tokenizer.ggml.tokens")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(index, tokens[index]) for index in _special_ids(metadata)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            # llama.cpp's smollm: every digit by itself, then GPT-2's split into words.
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level()],
        },
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
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(metadata: Metadata, model_max_length: int) -> dict[str, Any]:
    """Makes transformers, of any version, take tokenizer.json as it is."""
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
        "unk_token": tokens[metadata("tokenizer.ggml.unknown_token_id")],
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Greedy, ending at the model's own end token."""
    return {
        "bos_token_id": int(metadata("tokenizer.ggml.bos_token_id")),
        "do_sample": False,
        "eos_token_id": int(metadata("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(metadata("tokenizer.ggml.padding_token_id")),
    }


def _special_ids(metadata: Metadata) -> list[int]:
    types = metadata("tokenizer.ggml.token_type")
    return [index for index, kind in enumerate(types) if kind == _CONTROL]


def _added_token(index: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **flags}


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
