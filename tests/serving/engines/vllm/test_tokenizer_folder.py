"""vLLM's grammar backend gets our vocabulary and end token; needs transformers, but no vLLM."""

from __future__ import annotations

import tokenizers
from transformers import AutoTokenizer

from serving.engines.vllm.tokenizer_folder import tokenizer_folder
from serving.text import Tokenizer
from tests import tiny_tokenizers


def test_transformers_reads_our_vocabulary_and_our_first_end_token() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizers.byte_level(num_end_tokens=3).to_json())
    tokenizer = Tokenizer(backend, eos_token_ids=[3, 0])
    loaded = AutoTokenizer.from_pretrained(tokenizer_folder(tokenizer))
    assert loaded.eos_token_id == 3
    assert len(loaded) == tokenizer.vocab_size
    text = "naïve 🙂 <|im_end|"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_bos=False)
