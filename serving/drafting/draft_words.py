"""Tokenize the words of a prompt as they would be tokenized in an answer, so that a draft model can copy them.

A word follows a space in running text but not in quotes, and its tokens may be entirely different: " firmware" is one
token, "firmware" after a quote is two. A small model copies tokens easily only if they are the same in both places
(induction heads: Olsson et al. 2022, "In-context Learning and Induction Heads").

    word_tokens = WordTokenizer(tokenizer)
    word_tokens(tokenizer.encode("slowest ['firmware', 'pod']"))  # tokens of slowest, [, firmware, a comma, pod and ]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from serving.text import Tokenizer

_CACHED_WORDS, _CACHED_LENGTH = 16_384, 64  # words of up to 64 characters: a few MB
# Text in single quotes is one word, including its spaces; text between two apostrophes is not.
_WORDS = re.compile(r"(?<!\w)'([^']*)'(?!\w)|([^\s'\"]+)")


class WordTokenizer:
    """Maps the tokens of a text to the tokens of its words.

    Args:
        tokenizer: of the prompts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode_cached = lru_cache(_CACHED_WORDS)(self._encode)

    def __call__(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens of the words of a text, each without a leading space; quotes and white space are left out."""
        words = [quoted or word for quoted, word in _WORDS.findall(self._tokenizer.decode(token_ids))]
        encoded = [self._encode_cached(word) if len(word) <= _CACHED_LENGTH else self._encode(word) for word in words]
        return [token for tokens in encoded for token in tokens]

    def _encode(self, word: str) -> list[int]:
        return self._tokenizer.encode(word, add_bos=False)
