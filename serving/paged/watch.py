"""Tells a step that hangs from one that is slow because the machine is busy with other things.

Owns: the clocks of the model's thread. By the wall clock the two look alike, and to declare a starved
engine dead would end every request for nothing. So a step hangs when its thread has had no processor time
at all for a while (it waits for something that does not come), or far more than any step needs.

    watch = StepWatch(blocked_limit=5.0, busy_limit=8.0)
    watch.begin(); step(); watch.end()  # the model's thread
    watch.is_hung()  # anybody, again and again
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(slots=True)
class _Progress:
    """A step under way, as last looked at."""

    cpu_at_start: float
    cpu_seen: float
    advanced_at: float


class StepWatch:
    """Looks at the thread that called `begin`.

    Args:
        blocked_limit: seconds without any processor time.
        busy_limit: seconds of processor time in one step.
    """

    def __init__(self, *, blocked_limit: float, busy_limit: float) -> None:
        self.blocked_limit = blocked_limit
        self.busy_limit = busy_limit
        self._clock_id: int | None = None
        self._step: _Progress | None = None

    def begin(self) -> None:
        """A step begins, on the thread that calls."""
        if self._clock_id is None:
            self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        cpu = self.cpu_time()
        self._step = _Progress(cpu, cpu, self.now())

    def end(self) -> None:
        """The step is over."""
        self._step = None

    def is_hung(self) -> bool:
        """Whether the step under way will not end. Exact to the time between two calls."""
        step = self._step
        if step is None:
            return False
        try:
            cpu, now = self.cpu_time(), self.now()
        except OSError:  # the thread has just ended
            return False
        if cpu > step.cpu_seen:
            step.cpu_seen, step.advanced_at = cpu, now
        return now - step.advanced_at > self.blocked_limit or cpu - step.cpu_at_start > self.busy_limit

    def now(self) -> float:
        """Seconds on the wall."""
        return time.monotonic()

    def cpu_time(self) -> float:
        """Seconds that the thread has computed."""
        assert self._clock_id is not None
        return time.clock_gettime(self._clock_id)
