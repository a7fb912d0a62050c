"""vLLM's grammar backend gets our vocabulary and end token; needs transformers, but no vLLM."""

from __future__ import annotations

import json

import llguidance.hf
import pytest
import tokenizers
from transformers import AutoTokenizer

from serving.engines.vllm.options import tokenizer_folder
from serving.errors import WeightsError
from serving.text import Tokenizer
from tests import tiny_tokenizers


def test_transformers_reads_our_vocabulary_and_our_first_end_token() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizers.byte_level(num_end_tokens=3).to_json())
    tokenizer = Tokenizer(backend, eos_token_ids=[3, 0])
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder(tokenizer, vocab_size=tokenizer.vocab_size))
    assert loaded.eos_token_id == 3
    assert len(loaded) == tokenizer.vocab_size
    text = "naïve 🙂 <|im_end|"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_bos=False)


def padded(ends: list[int], **parts: object) -> Tokenizer:
    """A tokenizer with a `[PAD]` as its last token."""
    content = json.loads(tiny_tokenizers.metaspace().to_json()) | parts
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    backend.add_special_tokens(["[PAD]"])
    return Tokenizer(backend, eos_token_ids=ends)


def test_llguidance_reads_a_vocabulary_without_tokens_that_have_no_logits_and_a_metaspace_decoder() -> None:
    decoder = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    tokenizer = padded([2], decoder=decoder)
    width = tokenizer.vocab_size - 1
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder(tokenizer, vocab_size=width))
    assert len(loaded) == width
    assert llguidance.hf.from_tokenizer(loaded, width).vocab_size == width


def test_an_end_token_without_logits_is_passed_over_or_refused() -> None:
    pad = padded([2]).vocab_size - 1
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder(padded([pad, 2]), vocab_size=pad))
    assert loaded.eos_token_id == 2
    with pytest.raises(WeightsError, match=rf"the end token {pad} has no logits, of which the model has {pad}"):
        tokenizer_folder(padded([pad]), vocab_size=pad)
