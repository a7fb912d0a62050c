"""Measure how long each part of a step takes, summed over all steps.

clock.start(); work(); clock.lap("work"); clock.seconds["work"]
"""

from __future__ import annotations

import time


class StepClock:
    """The clock of one thread; other threads may read `seconds`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the time since `start` or the last lap to `name`."""
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """A copy of the seconds by name."""
        return self._seconds.copy()
