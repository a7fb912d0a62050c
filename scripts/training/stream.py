"""The order in which packs are seen.

Owns: shuffling by epoch, and a position that a checkpoint can hold. Knows nothing of training.

    stream = PackStream(len(packs), seed=0); indices = stream.take(6)
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class PackStream:
    """An endless order of `size` packs; every epoch has its own, given by the seed alone."""

    size: int
    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, count: int) -> list[int]:
        """The next packs' indices, over the end of an epoch where need be."""
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
