"""What the model's thread spends its time on.

Owns: seconds by name, summed over all steps. Knows nothing of what the names mean.

    clock.start(); work(); clock.lap("work"); clock.seconds["work"]
"""

from __future__ import annotations

import time


class StepClock:
    """One thread's; another may read `seconds` meanwhile."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """What comes is counted from here."""
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What was since the start or the last lap went into `name`."""
        now = time.perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """A copy."""
        return self._seconds.copy()
