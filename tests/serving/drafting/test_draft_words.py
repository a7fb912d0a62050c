"""A word has the same tokens in a question, in a list of columns and in an answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.drafting.draft_model import WordTokenizer
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()


def read(text: str) -> list[str]:
    word_tokens = WordTokenizer(TOKENIZER)
    return [TOKENIZER.decode([token]) for token in word_tokens(TOKENIZER.encode(text, add_bos=False))]


def tokens_of(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text, add_bos=False)]


@pytest.mark.parametrize("word", ["strawberry", "status", "http.route", "duration_ms", "p95", "é"])
def test_a_word_has_the_tokens_that_it_has_in_quotes(word: str):
    for text in (word, f"the {word}", f'"{word}"', f"['{word}']", f"\n{word}\n"):
        found, expected = read(text), tokens_of(word)
        assert any(found[i : i + len(expected)] == expected for i in range(len(found)))


def test_white_space_and_quotes_are_left_out_but_text_in_single_quotes_is_one_word():
    assert "".join(read("a\tb  \n'c' \"d\"")) == "abcd"
    assert "".join(read("['Uplink Count', 'x']")) == "[Uplink Count,x]"


def test_text_between_two_apostrophes_is_not_one_word():
    assert read("what's the user's city") == [*read("what s"), *read("the user s city")]


@given(st.text(max_size=30))
def test_only_quotes_and_white_space_are_left_out_of_any_text(text: str):
    found = TOKENIZER.decode(WordTokenizer(TOKENIZER)(TOKENIZER.encode(text, add_bos=False)))
    left_out = re.compile(r"[\s'\"]")
    assert left_out.sub("", found) == left_out.sub("", text)


def test_words_of_any_length_are_tokenized():
    word_tokens = WordTokenizer(TOKENIZER)
    text = "x" * 2_000
    assert TOKENIZER.decode(word_tokens(TOKENIZER.encode(text, add_bos=False))) == text
