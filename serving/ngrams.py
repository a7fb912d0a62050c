"""Which token followed the last few, by what was seen before.

Owns: tables from the hash of an n-gram to the tokens that followed it, how one is counted and how it
is stored. Knows nothing of requests, grammars or models. Keys are polynomial hashes: a context keeps
those of its prefixes, so that a token costs one multiplication, and so does the key of its last n
tokens for any n (Rabin and Karp 1987). Two n-grams with one key (1 in 2^62) make a bad draft, no more.

    table = NgramTable.build(sequences, orders=ORDERS)
    for token, share in table.successors(Context(tokens)): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from serving.errors import WeightsError

# Beside the checkpoint. A safetensors file by another name: vLLM takes every *.safetensors for weights.
DRAFT_TABLE = "draft.ngrams"
ORDERS = (1, 2, 3, 4, 6, 8, 12)
START = 0  # stands before the first token of an answer
_WIDTH = 3  # successors kept of an n-gram
_MATCHES = 2  # more make more drafts and no fewer passes: docs/log.md
_BASE = 0x9E3779B97F4A7C15  # odd, with well-mixed bits: the golden ratio's
_MASK = (1 << 63) - 1  # keys fit the signed integers of a file


class Context:
    """Tokens whose last n can be looked up, for any n; they are added and taken off at the end."""

    __slots__ = ("_hashes",)
    _powers: ClassVar[dict[int, int]] = {}

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._hashes = [0]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._hashes) - 1

    def append(self, token: int) -> None:
        """One more."""
        self._hashes.append((self._hashes[-1] * _BASE + token + 1) & _MASK)

    def extend(self, tokens: Iterable[int]) -> None:
        """Several more."""
        for token in tokens:
            self.append(token)

    def cut(self, length: int) -> None:
        """Back to the first `length` tokens."""
        del self._hashes[length + 1 :]

    def key(self, order: int) -> int:
        """Key of the last `order` tokens; there must be so many."""
        hashes = self._hashes
        power = self._powers.get(order) or self._powers.setdefault(order, pow(_BASE, order, _MASK + 1))
        return (((hashes[-1] - hashes[-1 - order] * power) & _MASK) * 31 + order) & _MASK

    def keys(self, orders: Sequence[int]) -> list[int]:
        """Keys of the last n tokens, for every n of `orders` (ascending) that fits."""
        return [self.key(order) for order in orders if order < len(self._hashes)]


class NgramTable:
    """What followed an n-gram in many texts, most frequent first, with how often that was so.

    Args:
        keys: of the n-grams, ascending.
        tokens: for each key, up to three tokens that followed it.
        shares: for each of those, its share of what followed, in 255ths; 0 marks an empty place.
        orders: lengths of the n-grams, ascending.
    """

    def __init__(
        self, keys: list[int], tokens: list[list[int]], shares: list[list[int]], *, orders: Sequence[int]
    ) -> None:
        self.orders = tuple(orders)
        self._longest_first = self.orders[::-1]
        self._row = dict(zip(keys, range(len(keys)), strict=True))
        self._tokens = tokens
        self._shares = shares

    def __len__(self) -> int:
        return len(self._row)

    def successors(self, context: Context) -> Iterator[tuple[int, int]]:
        """(token, share) after the longest matches, longest first; a token may come more than once."""
        matches, length = 0, len(context)
        for order in self._longest_first:
            row = self._row.get(context.key(order)) if order <= length else None
            if row is None:
                continue
            for pair in zip(self._tokens[row], self._shares[row], strict=True):
                if pair[1]:
                    yield pair
            matches += 1
            if matches == _MATCHES:
                return

    @classmethod
    def build(
        cls, sequences: Iterable[Sequence[int]], *, orders: Sequence[int] = ORDERS, max_ngrams: int = 60_000
    ) -> NgramTable:
        """Count answers, given as token ids; the rarest n-grams, and all seen once, are left out."""
        counts: dict[int, Counter[int]] = {}
        for sequence in sequences:
            context = Context((START,))
            for token in sequence:
                for key in context.keys(orders):
                    counts.setdefault(key, Counter())[token] += 1
                context.append(token)
        frequency = Counter(counter.total() for counter in counts.values())
        least = 2
        while sum(n for count, n in frequency.items() if count >= least) > max_ngrams:
            least += 1
        keys = sorted(key for key, counter in counts.items() if counter.total() >= least)
        rows = [_shares(counts[key]) for key in keys]
        return cls(keys, [tokens for tokens, _ in rows], [shares for _, shares in rows], orders=orders)

    def save(self, path: Path) -> None:
        """Write a file that is the same for the same table."""
        arrays: dict[str, NDArray[Any]] = {
            "keys": np.array(list(self._row), np.int64),
            "tokens": np.array(self._tokens, np.int32).reshape(len(self), _WIDTH),
            "shares": np.array(self._shares, np.uint8).reshape(len(self), _WIDTH),
            "orders": np.array(self.orders, np.int64),
        }
        save_file(arrays, path)

    @classmethod
    def load(cls, path: Path) -> NgramTable:
        """Read what `save` wrote.

        Raises:
            WeightsError: the file is something else.
        """
        with refuse_others(path):
            arrays = load_file(path)
            keys, tokens, shares, orders = (
                arrays[n].tolist() for n in ("keys", "tokens", "shares", "orders")
            )
            return cls(keys, tokens, shares, orders=orders)


@contextmanager
def refuse_others(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file of the drafter is read into a WeightsError that names it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is no file for the drafter: {error}; build the weights again") from error


def _shares(counter: Counter[int]) -> tuple[list[int], list[int]]:
    """Tokens and shares of a row. Ties go to the lower id: a table does not depend on the texts' order."""
    most = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:_WIDTH]
    total = counter.total() + 1  # what was seen once is not certain
    empty = [0] * (_WIDTH - len(most))
    return [token for token, _ in most] + empty, [255 * count // total for _, count in most] + empty


class RecentNgrams:
    """What followed an n-gram lately. Two generations of bounded size: the older one is dropped whole.

    Args:
        orders: lengths of the n-grams, ascending.
        capacity: n-grams of a generation.
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
        """`token` has followed `context`."""
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
