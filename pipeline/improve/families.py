"""Splits corrections into those that are learned and those that are held out, families of like inputs undivided.

A family are inputs that share most of their rare words. Words that most inputs have, such as the columns of the only
dataset, say nothing. The split depends on the inputs alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pipeline.train.split import choose_groups, text_hash

HELD_OUT: Final = 4  # one of so many corrections is held out
_MOST: Final = 120  # held out: all candidates answer them, and more would only make the interval a little narrower
_WORD: Final = re.compile(r"\w+")
_DIGITS: Final = re.compile(r"\d+")
_LIKE: Final = (0.5, 0.7, 0.9, 1.0)  # shares of common words; a higher one where families are too large to hold out


def held_out(texts: Sequence[str], learned: Sequence[bool]) -> list[bool]:
    """Which corrections are held out: about one in `HELD_OUT` of the new ones, at most `_MOST`, none learned before.

    Args:
        learned: whether an earlier version has learned it; then its family is learned again.
    """
    target = min(_MOST, max(1, (len(texts) - sum(learned)) // HELD_OUT))
    chosen: set[int] = set()
    for likeness in _LIKE:
        keys = _families(texts, likeness)
        known = {key for key, was_learned in zip(keys, learned, strict=True) if was_learned}
        free = Counter(key for key in keys if key not in known)
        chosen = set(choose_groups(free, target))
        if 2 * sum(free[key] for key in chosen) >= target:
            break
    return [key in chosen for key in keys]


def _families(texts: Sequence[str], likeness: float) -> list[int]:
    """The key of each text's family."""
    words = [frozenset(_WORD.findall(_DIGITS.sub("0", text.lower()))) for text in texts]
    counts = Counter(word for one in words for word in one)
    weights = {word: math.log(len(texts) / count) for word, count in counts.items()}
    sums = [sum(weights[word] for word in one) for one in words]
    family = list(range(len(texts)))

    def first(index: int) -> int:
        while family[index] != index:
            index = family[index]
        return index

    for one in range(len(texts)):
        for other in range(one):
            common = sum(weights[word] for word in words[one] & words[other])
            either = sums[one] + sums[other] - common
            if words[one] == words[other] or (either > 0 and common >= likeness * either):
                family[first(one)] = first(other)
    smallest: dict[int, int] = {}
    for index, text in enumerate(texts):
        key, root = text_hash(text), first(index)
        smallest[root] = min(key, smallest.get(root, key))
    return [smallest[first(index)] for index in range(len(texts))]
