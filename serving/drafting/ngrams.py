"""Finds the tokens that followed earlier occurrences of the last ones: in tables of n-grams, or in the text itself.

N-grams are looked up by a polynomial hash (Rabin and Karp 1987): a context keeps the hashes of its prefixes, so adding
a token takes one multiplication, and so does the hash of the last n tokens for any n. A collision of two n-grams
(probability 2^-62) only causes a bad draft.

    table = NgramTable.build(sequences, orders=ORDERS)
    for token, confidence in table.successors(Context(tokens)): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from serving.weights.draft_weights import as_weights_error

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


# A safetensors file under another name, because vLLM loads every *.safetensors in the folder as weights.
DRAFT_TABLE = "draft.ngrams"
ORDERS = (1, 2, 3, 4, 6, 8, 12)
START = 0  # precedes the first token of an answer
_WIDTH = 3  # successors kept for an n-gram
_MATCHES = 2  # with more there were more drafts and no fewer steps: docs/log.md
_BASE = 0x9E3779B97F4A7C15  # odd, with well-mixed bits: the golden ratio's
_MASK = (1 << 63) - 1  # keys are stored as signed 64-bit integers


class Context:
    """A sequence of tokens with the hashes of its last n tokens, for any n; it can be extended and truncated."""

    __slots__ = ("_hashes",)
    _powers: ClassVar[dict[int, int]] = {}

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._hashes = [0]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._hashes) - 1

    def append(self, token: int) -> None:
        """Append one token."""
        self._hashes.append((self._hashes[-1] * _BASE + token + 1) & _MASK)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append several tokens."""
        for token in tokens:
            self.append(token)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        del self._hashes[length + 1 :]

    def key(self, order: int) -> int:
        """Key of the last `order` tokens; there must be at least that many."""
        hashes = self._hashes
        power = self._powers.get(order) or self._powers.setdefault(order, pow(_BASE, order, _MASK + 1))
        return (((hashes[-1] - hashes[-1 - order] * power) & _MASK) * 31 + order) & _MASK

    def keys(self, orders: Sequence[int]) -> list[int]:
        """Keys of the last n tokens, for every n of `orders` (ascending) that fits."""
        return [self.key(order) for order in orders if order < len(self._hashes)]


class NgramTable:
    """The tokens that most often followed each n-gram in a collection of texts.

    Args:
        keys: the hashes of the n-grams, ascending.
        tokens: for each key, three tokens that followed it, the most frequent first.
        confidences: for each of those tokens, its relative frequency in 1/255; 0 marks an empty entry.
        orders: lengths of the n-grams, ascending.
    """

    def __init__(
        self, keys: list[int], tokens: list[list[int]], confidences: list[list[int]], *, orders: Sequence[int]
    ) -> None:
        self.orders = tuple(orders)
        self._longest_first = self.orders[::-1]
        self._row = dict(zip(keys, range(len(keys)), strict=True))
        self._tokens = tokens
        self._confidences = confidences

    def __len__(self) -> int:
        return len(self._row)

    def successors(self, context: Context) -> Iterator[tuple[int, int]]:
        """(token, confidence) for the longest matches, longest first; a token may occur more than once."""
        matches, length = 0, len(context)
        for order in self._longest_first:
            row = self._row.get(context.key(order)) if order <= length else None
            if row is None:
                continue
            for pair in zip(self._tokens[row], self._confidences[row], strict=True):
                if pair[1]:
                    yield pair
            matches += 1
            if matches == _MATCHES:
                return

    @classmethod
    def build(
        cls, sequences: Iterable[Sequence[int]], *, orders: Sequence[int] = ORDERS, max_ngrams: int = 60_000
    ) -> NgramTable:
        """Build a table from answers.

        Args:
            sequences: token ids of each answer.
            orders: lengths of the n-grams, ascending.
            max_ngrams: limit; the rarest n-grams are left out, and all that occur only once.
        """
        counts: dict[int, Counter[int]] = {}
        for sequence in sequences:
            context = Context((START,))
            for token in sequence:
                for key in context.keys(orders):
                    counts.setdefault(key, Counter())[token] += 1
                context.append(token)
        frequency = Counter(counter.total() for counter in counts.values())
        min_count = 2
        while sum(n for count, n in frequency.items() if count >= min_count) > max_ngrams:
            min_count += 1
        keys = sorted(key for key, counter in counts.items() if counter.total() >= min_count)
        rows = [_row(counts[key]) for key in keys]
        return cls(keys, [tokens for tokens, _ in rows], [confidences for _, confidences in rows], orders=orders)

    def save(self, path: Path) -> None:
        """Write the table to a file; equal tables give equal bytes."""
        arrays: dict[str, NDArray[Any]] = {
            "keys": np.array(list(self._row), np.int64),
            "tokens": np.array(self._tokens, np.int32).reshape(len(self), _WIDTH),
            "shares": np.array(self._confidences, np.uint8).reshape(len(self), _WIDTH),
            "orders": np.array(self.orders, np.int64),
        }
        save_file(arrays, path)

    @classmethod
    def load(cls, path: Path) -> NgramTable:
        """Read a file that `save` wrote.

        Raises:
            WeightsError: the file is not an n-gram table.
        """
        with as_weights_error(path):
            arrays = load_file(path)
            keys, tokens, confidences, orders = (arrays[n].tolist() for n in ("keys", "tokens", "shares", "orders"))
            return cls(keys, tokens, confidences, orders=orders)


def _row(counter: Counter[int]) -> tuple[list[int], list[int]]:
    """Tokens and confidences of a row. Ties go to the lower id, so that the order of the texts does not matter."""
    top = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:_WIDTH]
    total = counter.total() + 1  # so that no token is certain
    empty = [0] * (_WIDTH - len(top))
    return [token for token, _ in top] + empty, [255 * count // total for _, count in top] + empty


class RecentNgrams:
    """The token that last followed each n-gram, in two generations of limited size; the older one is dropped whole.

    Args:
        orders: lengths of the n-grams, ascending.
        capacity: number of n-grams in a generation.
    """

    def __init__(self, *, orders: Sequence[int], capacity: int) -> None:
        self.orders = tuple(orders)
        self._longest_first = self.orders[::-1]
        self._capacity = capacity
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def learn(self, context: Context, token: int) -> None:
        """Record that `token` followed `context`."""
        for key in context.keys(self.orders):
            self._young[key] = token
        if len(self._young) > self._capacity:
            self._young, self._old = {}, self._young

    def successors(self, context: Context) -> Iterator[tuple[int, int]]:
        """(token, order) of the longest matches, longest first."""
        matches, length = 0, len(context)
        for order in self._longest_first:
            if order > length:
                continue
            key = context.key(order)
            token = self._young.get(key)
            if token is None:
                token = self._old.get(key)
            if token is not None:
                yield token, order
                matches += 1
                if matches == _MATCHES:
                    return
