"""Published chat templates, each with a small tokenizer that has the family's control tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from tests import tiny_tokenizers

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Family:
    """A model's tokenizer and template.

    Args:
        tokenizer: a small one, or the real one.
        source: the chat template.
        special_tokens: their names and texts in tokenizer_config.json.
        features: what the template supports: `system`, `tools`.
    """

    tokenizer: Tokenizer
    source: str
    special_tokens: Mapping[str, str]
    features: frozenset[str] = field(default=frozenset({"system"}))

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate({"default": self.source}, self.tokenizer, self.special_tokens)

    @cached_property
    def _oracle(self) -> PreTrainedTokenizerFast:
        backend = tokenizers.Tokenizer.from_str(self.tokenizer.to_json())
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=self.source,
            clean_up_tokenization_spaces=False,
            **self.special_tokens,
        )

    def transformers_ids(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> list[int]:
        """The token ids that transformers gives for a conversation."""
        return self._oracle.apply_chat_template(list(messages), tokenize=True, return_dict=False, **arguments)


def with_tokens(tokenizer: Tokenizer, special: Sequence[str], ordinary: Sequence[str] = (), **flags: bool) -> Tokenizer:
    """The tokenizer with these added tokens, special ones and ordinary ones."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.add_special_tokens([AddedToken(word, special=True, normalized=False, **flags) for word in special])
    backend.add_tokens([AddedToken(word, special=False, normalized=False, **flags) for word in ordinary])
    return Tokenizer(backend, eos_token_ids=tokenizer.eos_token_ids)


def _source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text("utf-8")


def smollm2(tokenizer: Tokenizer | None = None) -> Family:
    """Control tokens as in SmolLM2, of which BOS is one."""
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return Family(tokenizer or tiny_tokenizers.byte_level(), _source("smollm2"), names)


def qwen() -> Family:
    """No BOS; `<tool_call>` is an added token that is not special."""
    ordinary = ["<tool_call>", "</tool_call>", "<|fim_prefix|>"]
    tokenizer = with_tokens(tiny_tokenizers.byte_level(), ["<|endoftext|>", "<|box_start|>"], ordinary)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return Family(tokenizer, _source("qwen2.5"), names, frozenset({"system", "tools"}))


def mistral() -> Family:
    """SentencePiece spaces; the template writes BOS."""
    parts = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
    words = ["[TOOL_CALLS]", *(f"[{slash}{part}]" for part in parts for slash in ("", "/"))]
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = with_tokens(tiny_tokenizers.metaspace(), words)
    return Family(tokenizer, _source("mistral-v0.3"), names, frozenset({"system", "tools"}))


def llama(name: str = "llama3") -> Family:
    """Byte-level; the template writes BOS and the tokenizer would add one, too."""
    words = ["begin_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag", "end_of_text"]
    tokenizer = with_tokens(tiny_tokenizers.byte_level(), [f"<|{word}|>" for word in words])
    content = json.loads(tokenizer.to_json())
    bos = "<|begin_of_text|>"
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [_id_of(content, bos)], "tokens": [bos]}},
    }
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    features = {"system", "tools"} if name == "llama3.1" else {"system"}
    names = {"bos_token": bos, "eos_token": "<|eot_id|>"}
    return Family(Tokenizer(backend, eos_token_ids=[0]), _source(name), names, frozenset(features))


def _id_of(content: Mapping[str, Any], word: str) -> int:
    return next(token["id"] for token in content["added_tokens"] if token["content"] == word)


FAMILIES = {
    "smollm2": smollm2(),
    "qwen2.5": qwen(),
    "mistral-v0.3": mistral(),
    "llama3": llama(),
    "llama3.1": llama("llama3.1"),
}
