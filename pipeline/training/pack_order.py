"""The random order of packs, which can be resumed at any position."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class PackStream:
    """An endless order of `size` packs; each epoch's order depends only on the seed."""

    size: int
    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, count: int) -> list[int]:
        """The indices of the next packs, across the end of an epoch if necessary."""
        taken: list[int] = []
        while len(taken) < count:
            order = list(range(self.size))
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
            part = order[self.offset : self.offset + count - len(taken)]
            taken += part
            self.offset += len(part)
            if self.offset == self.size:
                self.epoch, self.offset = self.epoch + 1, 0
        return taken
