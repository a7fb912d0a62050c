"""Which token followed the last few, by what was seen before.

Owns: tables from the hash of an n-gram to the tokens that followed it, how one is counted and how it
is stored. Knows nothing of requests, grammars or models. Keys are polynomial hashes, so that those
of all orders at one position cost one multiplication a token; two n-grams with one key (1 in 2^62)
make a bad draft, no more.

    table = NgramTable.build(sequences, orders=ORDERS)
    for token, confidence in table.successors(context): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
_BASE = 0x9E3779B97F4A7C15  # odd, with well-mixed bits: the golden ratio's
_MASK = (1 << 63) - 1  # keys fit the signed integers of a file


def suffix_keys(context: Sequence[int], orders: Sequence[int]) -> list[int]:
    """Keys of the last n tokens of `context`, for every n of `orders` (ascending) that fits."""
    keys: list[int] = []
    key, power, length, size = 0, 1, 0, len(context)
    for order in orders:
        if order > size:
            break
        while length < order:
            length += 1
            key = (key + (context[size - length] + 1) * power) & _MASK
            power = (power * _BASE) & _MASK
        keys.append((key * 31 + order) & _MASK)
    return keys


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
        self._row = dict(zip(keys, range(len(keys)), strict=True))
        self._tokens = tokens
        self._shares = shares

    def __len__(self) -> int:
        return len(self._row)

    def successors(self, context: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(token, share), those of the longest match first; a token may come more than once."""
        for key in reversed(suffix_keys(context, self.orders)):
            row = self._row.get(key)
            if row is not None:
                for pair in zip(self._tokens[row], self._shares[row], strict=True):
                    if pair[1]:
                        yield pair

    @classmethod
    def build(
        cls, sequences: Iterable[Sequence[int]], *, orders: Sequence[int] = ORDERS, min_count: int = 2
    ) -> NgramTable:
        """Count answers, given as token ids; n-grams seen less often than `min_count` are left out."""
        counts: dict[int, Counter[int]] = {}
        for sequence in sequences:
            tokens = [START, *sequence]
            for i in range(1, len(tokens)):
                for key in suffix_keys(tokens[max(0, i - orders[-1]) : i], orders):
                    counts.setdefault(key, Counter())[tokens[i]] += 1
        keys = sorted(key for key, counter in counts.items() if counter.total() >= min_count)
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
        try:
            arrays = load_file(path)
            keys, tokens, shares, orders = (
                arrays[n].tolist() for n in ("keys", "tokens", "shares", "orders")
            )
            return cls(keys, tokens, shares, orders=orders)
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise WeightsError(
                f"{path} is not a table of n-grams: {error}; build the weights again"
            ) from error


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
        self._capacity = capacity
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, context: Sequence[int], tokens: Sequence[int], start: int = 1) -> None:
        """Learn that `tokens[i]` followed `context[:i]`, for every i from `start` on."""
        longest = self.orders[-1]
        for i in range(max(start, 1), len(tokens)):
            for key in suffix_keys(context[max(0, i - longest) : i], self.orders):
                self._young[key] = tokens[i]
        if len(self._young) > self._capacity:
            self._young, self._old = {}, self._young

    def successors(self, context: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(token, order of the match), the longest match first."""
        keys = suffix_keys(context, self.orders)
        for key, order in zip(reversed(keys), reversed(self.orders[: len(keys)]), strict=True):
            token = self._young.get(key)
            if token is None:
                token = self._old.get(key)
            if token is not None:
                yield token, order
