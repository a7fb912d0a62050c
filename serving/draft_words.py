"""A prompt's words as an answer would write them, for a draft model that is to find them again.

Owns: the tokens of words. Knows nothing of models. In running text a word has a space before it, in quotes it
has none, and its tokens may have nothing in common: " firmware" is one token, "firmware" in quotes is two.
Copying is easy for a small model only where both are the same ("In-context Learning and Induction Heads",
Olsson et al. 2022).

    words = Words(tokenizer)
    words(tokenizer.encode("slowest ['firmware', 'pod']"))  # of slowest, [, firmware, a comma, pod and ]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from serving.text import Tokenizer

_REMEMBERED, _LONG = 16_384, 64  # words, characters: a few MB
# What stands in single quotes is one word, with its spaces; what stands between two apostrophes is not.
_WORDS = re.compile(r"(?<!\w)'([^']*)'(?!\w)|([^\s'\"]+)")


class Words:
    """See the module's text.

    Args:
        tokenizer: of the prompts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode_short = lru_cache(_REMEMBERED)(self._encode)

    def __call__(self, token_ids: Sequence[int]) -> list[int]:
        """The tokens of the words of a text, each as behind a quote; what separates words is left out."""
        found = [quoted or word for quoted, word in _WORDS.findall(self._tokenizer.decode(token_ids))]
        encoded = [self._encode_short(word) if len(word) <= _LONG else self._encode(word) for word in found]
        return [token for tokens in encoded for token in tokens]

    def _encode(self, word: str) -> list[int]:
        return self._tokenizer.encode(word, add_bos=False)
