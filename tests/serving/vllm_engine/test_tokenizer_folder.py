"""The end token that vLLM's grammar backend will use is ours; needs no vLLM, only what it reads with."""

from __future__ import annotations

import tokenizers
from transformers import AutoTokenizer

from serving.text import Tokenizer
from serving.vllm_engine.tokenizer_folder import tokenizer_folder
from tests import tiny_tokenizers


def test_transformers_reads_our_vocabulary_and_our_first_end_token() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizers.byte_level(num_end_tokens=3).to_json())
    ours = Tokenizer(backend, eos_token_ids=[3, 0])
    theirs = AutoTokenizer.from_pretrained(tokenizer_folder(ours))
    assert theirs.eos_token_id == 3
    assert len(theirs) == ours.vocab_size
    text = "naïve 🙂 <|im_end|"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text, add_bos=False)
