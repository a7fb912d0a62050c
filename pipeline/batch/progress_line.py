"""Shows how far a run is, at which rate, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

_EVERY: Final = (0.5, 10.0)  # seconds between two lines on a terminal, and in a log


class ProgressLine:
    """One line that is rewritten on a terminal; elsewhere, a line every ten seconds.

    Args:
        total: rows of the input.
        done: rows that had their answer before this run.
        out: where it is written.
        clock: seconds.
    """

    def __init__(self, total: int, done: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._before, self._out, self._clock = total, done, out, clock
        self._is_terminal = out.isatty()
        self._began = clock()
        self._shown = self._began
        self._answered = self._failed = 0

    def add(self, *, failed: bool) -> None:
        """Count one row, and show the line if it is time."""
        self._answered += 1
        self._failed += failed
        if self._clock() - self._shown >= _EVERY[0 if self._is_terminal else 1]:
            self._show()

    def finish(self) -> None:
        """Show the line for the last time."""
        self._show()
        if self._is_terminal:
            self._out.write("\n")

    def _show(self) -> None:
        self._shown = self._clock()
        self._out.write(f"\r\x1b[K{self}" if self._is_terminal else f"{self}\n")
        self._out.flush()

    def __str__(self) -> str:
        seconds = self._clock() - self._began
        rate = self._answered / seconds if seconds > 0 else 0.0
        done = self._before + self._answered
        left = f", {_duration((self._total - done) / rate)} left" if rate and done < self._total else ""
        return f"{done:,} of {self._total:,} rows, {self._failed:,} failed, {rate:.3g} rows/s{left}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
