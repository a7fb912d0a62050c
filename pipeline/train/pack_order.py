"""The random order of packs, which can be resumed at any position."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_WINDOW = 16  # steps whose packs are sorted by length


@dataclass
class PackStream:
    """An endless order of packs; each epoch's order depends only on the lengths, the seed and the size of a step.

    The packs of a step have similar lengths, so that threads with one pack each finish at about the same time.

    Args:
        lengths: of the packs, in tokens.
        seed: of the order.
        epoch: epochs taken so far.
        offset: packs taken of this epoch.
    """

    lengths: Sequence[int]
    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, count: int) -> list[int]:
        """The indices of the next packs, across the end of an epoch if necessary."""
        taken: list[int] = []
        while len(taken) < count:
            part = self._order(count)[self.offset : self.offset + count - len(taken)]
            taken += part
            self.offset += len(part)
            if self.offset == len(self.lengths):
                self.epoch, self.offset = self.epoch + 1, 0
        return taken

    def _order(self, count: int) -> list[int]:
        rng = random.Random(f"{self.seed}/{self.epoch}")
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        result: list[int] = []
        for start in range(0, len(order), _WINDOW * count):
            window = sorted(order[start : start + _WINDOW * count], key=lambda index: self.lengths[index])
            steps = [window[first : first + count] for first in range(0, len(window), count)]
            rng.shuffle(steps)
            result += [index for step in steps for index in step]
        return result
