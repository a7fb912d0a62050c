"""Splits examples into parts so that inputs that are nearly the same are in one part.

Inputs are nearly the same if they have the same words in the same order; case, digits and punctuation do not count.
The split depends on the examples alone.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pipeline.answer_format.errors import ExamplesError
from pipeline.train.example_files import Part

MIN_EXAMPLES: Final = 10
_MAX_HELD_OUT: Final = 500  # examples of a part that is not trained on
_MAX_LEFT_OUT: Final = 0.25  # of all examples; with more, digits are what inputs of this task differ in
_WORD: Final = re.compile(r"\w+")
_DIGITS: Final = re.compile(r"\d+")
_HELD_OUT: Final = (Part.TEST, Part.VALIDATION)


class Likeness(Enum):
    """What is taken for nearly the same input; the value is the words that say so."""

    DIGITS_ASIDE = "the same but for case, digits and punctuation"
    CASE_ASIDE = "the same but for case and punctuation"


class InputKeys:
    """Keys of inputs, 16 bytes each: two inputs that are nearly the same have the same key."""

    def __init__(self) -> None:
        self._keys = {likeness: array("Q") for likeness in Likeness}

    def add(self, text: str) -> int:
        """Keep an input's keys, and give a number by which inputs are in random order, near-duplicates together."""
        words = " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).lower())) or text.strip()
        keys = {Likeness.DIGITS_ASIDE: text_hash(_DIGITS.sub("0", words)), Likeness.CASE_ASIDE: text_hash(words)}
        for likeness, key in keys.items():
            self._keys[likeness].append(key)
        return keys[Likeness.DIGITS_ASIDE]

    def of(self, likeness: Likeness) -> Sequence[int]:
        """The keys of all inputs, in the order in which they were added."""
        return self._keys[likeness]


@dataclass(frozen=True, slots=True)
class Split:
    """Which part each example is in.

    Args:
        parts: of each example; None for one that is left out, because it is like one of another part.
        order: a number for each example; in its order, parts are shuffled.
        likeness: by which inputs were compared.
    """

    parts: Sequence[Part | None]
    order: Sequence[int]
    likeness: Likeness

    def count(self, part: Part | None) -> int:
        """The number of examples of a part."""
        return self.parts.count(part)


def split(keys: InputKeys, given: Sequence[Part | None], parts: frozenset[Part]) -> Split:
    """The split of examples; a part that has a file of its own stays as it is.

    Args:
        keys: of the examples' inputs.
        given: the part of the file that each example is in, where files are parts.
        parts: that have a file of their own.

    Raises:
        ExamplesError: there are too few examples, or their inputs are too much alike.
    """
    if len(given) < MIN_EXAMPLES:
        raise ExamplesError(f"{len(given)} examples; at least {MIN_EXAMPLES} are needed, and a few hundred are better")
    for likeness in Likeness:
        found = _split(keys.of(likeness), given, parts)
        is_last = likeness is list(Likeness)[-1]
        if found is not None and (is_last or found.count(None) <= _MAX_LEFT_OUT * len(found)):
            if missing := [part for part in Part if part not in found]:
                raise ExamplesError(
                    f"no example is left for {missing[0]}, as its file has none or all are like those of another part; "
                    "mend the file, or leave it out"
                )
            return Split(found, keys.of(likeness), likeness)
    raise ExamplesError(
        f"the inputs of the {len(given):,} examples are so much alike that none can be held out for validation and "
        "tests; give examples with more inputs"
    )


def held_out_size(num_examples: int) -> int:
    """The wanted number of examples in validation, and in the test: a tenth, up to a fifth of few examples."""
    return min(_MAX_HELD_OUT, max(num_examples // 10, min(num_examples // 5, 40)))


def _split(keys: Sequence[int], given: Sequence[Part | None], parts: frozenset[Part]) -> list[Part | None] | None:
    """The part of each example; None if too few can be held out."""
    owner: dict[int, Part] = {}
    for part in _HELD_OUT:  # what is in both is left out of the second
        if part in parts:
            for key, of in zip(keys, given, strict=True):
                if of == part:
                    owner.setdefault(key, part)
    rest = Counter(key for key, of in zip(keys, given, strict=True) if of in (None, Part.TRAIN) and key not in owner)
    target = held_out_size(rest.total())
    for part in _HELD_OUT:
        if part not in parts:
            chosen = choose_groups(rest, target)
            if 2 * sum(rest[key] for key in chosen) < target or not target:
                return None
            for key in chosen:
                owner[key] = part
                del rest[key]
    return [_part(of, owner.get(key, Part.TRAIN), parts) for key, of in zip(keys, given, strict=True)]


def _part(given: Part | None, owner: Part, parts: frozenset[Part]) -> Part | None:
    """The part of an example: its input's owner, unless a file puts it elsewhere."""
    is_free = given is None or (given is Part.TRAIN and owner not in parts)
    return owner if is_free or given is owner else None


def choose_groups(groups: Counter[int], target: int) -> list[int]:
    """Keys in random order whose examples are together at most `target`; no group is much of it if others suffice."""
    chosen: dict[int, None] = {}
    room = target
    for largest in (max(1, target // 5), target):
        for key in sorted(groups):
            if key not in chosen and groups[key] <= min(largest, room):
                chosen[key] = None
                room -= groups[key]
    return list(chosen)


def text_hash(text: str) -> int:
    """A number of 64 bits, in whose order texts are shuffled."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def num_alike(keys: Sequence[int]) -> int:
    """The number of examples whose key another one before them has."""
    return len(keys) - len(set(keys))
