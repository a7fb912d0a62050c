"""The sizes of the benchmark of many adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PARTS: Final = ("right", "rates", "cold", "long")


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """How much is measured.

    Args:
        parts: what is measured, of `PARTS`.
        rounds: repetitions of the rates.
        counts: numbers of adapters that share one base; more than there are, as copies under other names.
        asked: requests in each measurement of a rate.
        users: concurrent requests.
        warm: requests beside cold adapters, each of which is asked once.
        cold: adapters that are asked for the first time.
        long: predictions of the long run, over the largest of `counts`.
        long_parts: after each the memory is measured.
        long_users: concurrent requests in it; each may hold an adapter, so they are fewer than `long_kept`.
        long_kept: adapters that fit in memory in it.
    """

    parts: tuple[str, ...] = PARTS
    rounds: int = 3
    counts: tuple[int, ...] = (8, 32, 128)
    asked: int = 512
    users: int = 32
    warm: int = 640
    cold: int = 40
    long: int = 10_000
    long_parts: int = 20
    long_users: int = 8
    long_kept: int = 16

    @staticmethod
    def quick() -> AdapterPlan:
        """Sizes to see that everything works."""
        return AdapterPlan(rounds=1, counts=(8, 16), asked=16, warm=16, cold=2, long=32, long_parts=2)
