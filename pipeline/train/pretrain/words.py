"""Draws words, names, codes and phrases, most of them from a tokenizer's vocabulary.

Its words are those that a draft model can copy as one token; invented names and codes have several.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from typing import Final

from serving.text import Tokenizer

_WORD: Final = re.compile(" ([a-z]{3,12})")
_CAPITAL: Final = re.compile(" ([A-Z][a-z]{2,11})")
_ONSETS: Final = ("b", "br", "c", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "w")
_VOWELS: Final = ("a", "e", "i", "o", "u", "ai", "ee", "ou", "é", "y")
_CODAS: Final = ("", "", "n", "r", "s", "l", "m", "ck", "nd", "th", "x", "t", "ng", "ñ", "ß")
_INVENTED: Final = 1_000
_STYLES: Final = ("snake", "snake", "snake", "camel", "camel", "plain", "kebab", "Title", "UPPER")


class Words:
    """A source of random words.

    Args:
        tokenizer: its vocabulary has the words.
        keys: real names of keys, of which some are drawn; none means words only.
    """

    def __init__(self, tokenizer: Tokenizer, order: random.Random, keys: Sequence[str] = ()) -> None:
        texts = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
        self.order = order
        self._keys = keys
        lower, capital = ([found[1] for text in texts if (found := form.fullmatch(text))] for form in (_WORD, _CAPITAL))
        # A vocabulary of bytes has no words.
        self._lower = lower or [self._invented() for _ in range(_INVENTED)]
        self._capital = capital or [self._invented().capitalize() for _ in range(_INVENTED)]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.order.random() < probability

    def choice(self, values: Sequence[str]) -> str:
        """One of some texts."""
        return self.order.choice(values)

    def word(self) -> str:
        """A word in lower case."""
        return self.choice(self._lower)

    def name(self) -> str:
        """A word with a capital, which one time in three is invented."""
        return self._invented().capitalize() if self.chance(0.35) else self.choice(self._capital)

    def names(self, most: int) -> str:
        """Some words with capitals."""
        return " ".join(self.name() for _ in range(self.order.randint(1, most)))

    def phrase(self, least: int = 1, most: int = 4) -> str:
        """Some words in lower case, rarely with an apostrophe, a hyphen or a number."""
        words = [self.word() for _ in range(self.order.randint(least, most))]
        if self.chance(0.1):
            words[-1] += self.choice(("'s", "-" + self.word(), " " + str(self.order.randint(2, 99)), "n't"))
        return " ".join(words)

    def title(self) -> str:
        """A phrase as in titles: all, the first or no words with a capital."""
        phrase = self.phrase(1, 6)
        return self.choice(
            (phrase, phrase.capitalize(), phrase.title(), phrase.upper() if self.chance(0.2) else phrase)
        )

    def digits(self, least: int, most: int) -> str:
        """A number of so many digits, which does not begin with 0."""
        return str(self.order.randint(1, 9)) + "".join(
            str(self.order.randint(0, 9)) for _ in range(self.order.randint(least, most) - 1)
        )

    def code(self) -> str:
        """An identifier with digits."""
        letters = "".join(self.order.choice("ABCDEFGHKLMNPQRSTUVWXZ") for _ in range(self.order.randint(1, 3)))
        form = self.choice(("{a}-{n}", "{a}{n}", "#{n}", "{w}-{n}", "{n}-{a}", "{a}/{n}", "{w}_{n}", "{n}"))
        code = form.format(a=letters, n=self.digits(2, 6), w=self.word())
        return code.lower() if self.chance(0.3) else code

    def key(self, phrase: str | None = None) -> list[str]:
        """The words of a key: of the phrase, of a real key or drawn."""
        if phrase is None and self._keys and self.chance(0.6):
            phrase = self.choice(self._keys)
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z0-9]+", " ", phrase or self.phrase(1, 2))
        return spaced.lower().split()[:4] or [self.word()]

    def style(self) -> str:
        """A way to spell keys; one answer has one of them."""
        return self.choice(_STYLES)

    def _invented(self) -> str:
        syllables = (self.choice(_ONSETS) + self.choice(_VOWELS) + self.choice(_CODAS) for _ in range(3))
        return "".join(syllables if self.chance(0.4) else list(syllables)[:2])


def spell(words: Iterable[str], style: str) -> str:
    """A key of words: snake_case, camelCase, kebab-case, plain words, Title or UPPER."""
    parts = list(words)
    if style == "camel":
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    joined = {"kebab": "-", "plain": " ", "Title": " "}.get(style, "_").join(parts)
    return joined.upper() if style == "UPPER" else joined.title() if style == "Title" else joined
