"""What is measured, and how much of it.

Owns: the experiments and their sizes. Knows nothing of engines or clocks.

    Plan(rounds=5), Plan.quick(), Workload.ONE_NEW
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Workload(StrEnum):
    """An experiment, by the name that the command line and results have for it."""

    ONE_NEW = "one-new"  # one request at a time, columns never seen
    ONE_SEEN = "one-seen"  # the same, of columns that another question came with before
    LOAD_8 = "load-8"
    LOAD_32 = "load-32"
    OPEN = "open"  # Poisson arrivals, at rates up to saturation
    FREE_200 = "free-200"  # eight requests after a warm-up, 200 tokens each, no grammar, no end
    USERS = "users"  # 1–9 users in parallel, each with requests in sequence
    EVALUATION = "evaluation"  # passes an answer over many requests; our engine only


BASIC = (Workload.ONE_NEW, Workload.LOAD_8, Workload.LOAD_32)
STANDARD = (*BASIC, Workload.ONE_SEEN, Workload.OPEN, Workload.FREE_200)
FREE_TOKENS = 200
FREE_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    rounds: int = 3
    one: int = 20
    load_8: int = 40
    load_32: int = 64
    open_seconds: float = 12.0
    open_most: int = 64
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    users: tuple[int, ...] = tuple(range(1, 10))
    per_user: int = 64
    max_tokens: int = 256
    free_tokens: int = FREE_TOKENS
    free_requests: int = FREE_REQUESTS

    @staticmethod
    def quick() -> Plan:
        """Seconds for each engine: whether all works, not how fast."""
        return Plan(
            rounds=1,
            one=3,
            load_8=8,
            load_32=32,
            open_seconds=2.0,
            open_most=8,
            rates=(4.0, 16.0),
            users=(1, 2),
            per_user=2,
            max_tokens=128,
            free_tokens=16,
            free_requests=2,
        )

    def num_open(self, rate: float) -> int:
        """Requests at a rate: as many as come in the time, within bounds."""
        return max(min(8, self.open_most), min(self.open_most, round(rate * self.open_seconds)))
