"""The shapes of answers in OpenAI's API."""

from __future__ import annotations

from gateway.openai.choices import Answer
from gateway.openai.shapes import CompletionShape
from serving.answer_metrics import logprob_metric
from serving.types import TokenLogprob
from tests import tiny_tokenizers


def test_a_completion_has_an_entry_for_each_token_whose_bytes_are_no_text():
    tokenizer = tiny_tokenizers.byte_level()
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    ids = [by_bytes[content] for content in (b"\xc3", b"\xe6", b"\xf0", b"a")]
    top = tuple((one, -float(number)) for number, one in enumerate(ids))
    entries = logprob_metric([TokenLogprob(ids[0], 0.0, top)], tokenizer)
    found = CompletionShape().whole(0, Answer("", "stop", 1, 0, 1, entries))["logprobs"]
    assert found["tokens"] == [r"bytes:\xc3"]
    assert found["top_logprobs"] == [{r"bytes:\xc3": 0.0, r"bytes:\xe6": -1.0, r"bytes:\xf0": -2.0, "a": -3.0}]
    assert found["text_offset"] == [0]
