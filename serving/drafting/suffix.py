"""Find earlier occurrences of the last tokens of a text, and the tokens that followed them.

This is prompt lookup decoding (Saxena 2023, "Prompt Lookup Decoding"). Tokens are stored as the characters of a string,
whose search is so fast that no index is needed. The search compares normalized tokens, so that a word after a space
matches the same word after a quote.

    text.extend([5, 6, 7, 5], normalize=lambda token: token)
    list(text.successors((1, 2)))  # [(6, 6, 1)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

_MAX_DISTANCE = 8_192  # tokens to search backwards, which takes a few microseconds


class SuffixText:
    """A text of token ids below 0x110000 that can be extended and truncated."""

    __slots__ = ("_normalized", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._normalized = ""

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int], normalize: Callable[[int], int]) -> None:
        """Append tokens; `normalize` maps a token to the one that represents it in comparisons."""
        self._tokens += tokens
        self._normalized += "".join(map(chr, map(normalize, tokens)))

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        del self._tokens[length:]
        self._normalized = self._normalized[:length]

    def successors(self, orders: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """For each n of `orders` (ascending), find the latest earlier occurrence of the last n tokens.

        Yields (token, normalized token, n) for the token that followed it, up to the first n without an occurrence.
        """
        text = self._normalized
        end = len(text)
        for order in orders:
            start = end - order
            match = text.rfind(text[start:], max(0, end - _MAX_DISTANCE), end - 1) if start > 0 else -1
            if match < 0:
                return
            yield self._tokens[match + order], ord(text[match + order]), order
