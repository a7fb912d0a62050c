"""The workloads and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Workload(StrEnum):
    """A workload, by its name on the command line and in results."""

    ONE_NEW = "one-new"  # one request at a time, with columns that were not seen before
    ONE_SEEN = "one-seen"  # the same, with columns that another question had before
    LOAD_8 = "load-8"
    LOAD_32 = "load-32"
    OPEN = "open"  # Poisson arrivals, at rates up to saturation
    FREE_200 = "free-200"  # eight requests after a warm-up, 200 tokens each, without a grammar and without an end token
    USERS = "users"  # 1–9 users in parallel, each with requests in sequence
    EVALUATION = "evaluation"  # passes per answer over many requests


BASIC = (Workload.ONE_NEW, Workload.LOAD_8, Workload.LOAD_32)
STANDARD = (*BASIC, Workload.ONE_SEEN, Workload.OPEN, Workload.FREE_200)
FREE_TOKENS = 200
FREE_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of all workloads."""

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
        """A plan that takes seconds for each engine, to check that everything works."""
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
        """Number of requests at an arrival rate: as many as arrive in the time, within bounds."""
        return max(min(8, self.open_most), min(self.open_most, round(rate * self.open_seconds)))
