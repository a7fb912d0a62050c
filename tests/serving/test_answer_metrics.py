"""A trace has each token of the answer once, with its source, in the pass that gave it."""

from __future__ import annotations

from serving.answer_metrics import token_trace
from serving.types import CHOSEN, TokenPass
from tests.tiny_tokenizers import byte_level

PASSES = (TokenPass(0.1, ("forced", "model", CHOSEN)), TokenPass(0.125, ("model", CHOSEN)))


def texts(trace) -> list[str]:
    return [text for _, tokens in trace for text, _ in tokens]


def test_each_pass_has_its_own_tokens():
    tokenizer = byte_level()
    token_ids = tokenizer.encode("xyzuv", add_bos=False)
    assert len(token_ids) == 5
    trace = token_trace(PASSES, token_ids, tokenizer)
    assert trace == [
        [100.0, [["x", "forced"], ["y", "model"], ["z", CHOSEN]]],
        [125.0, [["u", "model"], ["v", CHOSEN]]],
    ]


def test_tokens_behind_a_stop_string_are_left_out():
    tokenizer = byte_level()
    trace = token_trace(PASSES, tokenizer.encode("xyz", add_bos=False), tokenizer)
    assert [at for at, _ in trace] == [100.0]
    assert texts(trace) == ["x", "y", "z"]


def test_a_character_of_several_tokens_is_with_the_last_one():
    tokenizer = byte_level()
    token_ids = tokenizer.encode("\U0001f41d", add_bos=False)
    assert len(token_ids) > 1
    *others, last = texts(token_trace(PASSES, token_ids, tokenizer))
    assert (set(others), last) == ({""}, "\U0001f41d")
