"""Where have the last tokens of a text stood before, and what followed?

Owns: a text of token ids that is searched for its own suffixes. Knows nothing of requests or models.
Tokens are kept as the characters of a string: its search runs at memory speed, so there is no index to
build for a prompt and nothing to undo but the end of a string (as in "Prompt Lookup Decoding", Saxena 2023).
What is searched is a twin of each token, so that a word matches itself behind a space and behind a quote.

    text.extend([5, 6, 7, 5], twin=lambda token: token); list(text.successors((1, 2)))  # [(6, 6, 1)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

_SEARCHED = 8_192  # tokens back; so many take some microseconds


class SuffixText:
    """Tokens, each below 0x110000, that are added and taken off at the end."""

    __slots__ = ("_tokens", "_twins")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._twins = ""

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int], twin: Callable[[int], int]) -> None:
        """Some more."""
        self._tokens += tokens
        self._twins += "".join(map(chr, map(twin, tokens)))

    def cut(self, length: int) -> None:
        """Back to the first `length` tokens."""
        del self._tokens[length:]
        self._twins = self._twins[:length]

    def successors(self, orders: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(token, its twin, order): what followed the last `order` tokens where they stood last, for
        ascending `orders`, as far as they stood before."""
        twins = self._twins
        end = len(twins)
        for order in orders:
            start = end - order
            found = twins.rfind(twins[start:], max(0, end - _SEARCHED), end - 1) if start > 0 else -1
            if found < 0:
                return
            yield self._tokens[found + order], ord(twins[found + order]), order
