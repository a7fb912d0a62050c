"""Where have the last tokens of a text stood before, and what followed?

Owns: a text of token ids that is searched for its own suffixes. Knows nothing of requests or models.
Tokens are kept as the characters of a string: its search runs at memory speed, so there is no index to
build for a prompt and nothing to undo but the end of a string (as in "Prompt Lookup Decoding", Saxena 2023).

    text.extend([5, 6, 7, 5]); list(text.successors((1, 2)))  # [(6, 1)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_SEARCHED = 8_192  # tokens back; so many take some microseconds


class SuffixText:
    """Tokens, each below 0x110000, that are added and taken off at the end."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = ""

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Some more."""
        self._text += "".join(map(chr, tokens))

    def cut(self, length: int) -> None:
        """Back to the first `length` tokens."""
        self._text = self._text[:length]

    def successors(self, orders: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(token, order): what followed the last `order` tokens where they stood last, for ascending
        `orders`, as far as they stood before."""
        text = self._text
        end = len(text)
        for order in orders:
            start = end - order
            found = text.rfind(text[start:], max(0, end - _SEARCHED), end - 1) if start > 0 else -1
            if found < 0:
                return
            yield ord(text[found + order]), order
