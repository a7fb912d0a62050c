"""Make tokenizer.json and its companions from the metadata of a GGUF.

They are written as JSON by this package, so that no release of a library can change a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import CheckpointError

Metadata = Callable[[str], Any]
# GGUF's types of tokens: control tokens, which text never becomes; additional words; unused ids.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5


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
