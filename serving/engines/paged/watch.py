"""Detect a step that hangs, as opposed to one that is slow because the machine is busy.

By wall-clock time the two look alike, and declaring a slow engine dead would end all requests without need. A step
hangs if its thread has had no CPU time for a while and no thread of the process wants any (all of them are blocked), or
if it has had far more CPU time than any step needs.

    watch = StepWatch(blocked_limit=5.0, busy_limit=8.0)
    watch.begin(); step(); watch.end()  # on the model's thread
    watch.is_hung()  # on any thread, repeatedly
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# A step is checked about every quarter of `blocked_limit`. Longer between two checks, the process did not run (it was
# stopped, or its machine was), or another thread held the GIL. That says nothing about the step, so it does not count.
_LONGEST_INTERVAL = 0.25
_SHORTEST_INTERVAL = 0.05  # also of `blocked_limit`; checks that follow sooner, of other requests, change nothing
# Without CPU time for this many times `blocked_limit`, a step hangs whatever other threads do: one of them may spin.
_STARVED_LIMITS = 12.0


@dataclass(slots=True)
class _Progress:
    """The state of the current step at the last check; times in seconds."""

    checked_at: float  # by the wall clock
    cpu: float  # CPU time of the thread
    busy: float = 0.0  # CPU time in this step
    waiting: float = 0.0  # time since the thread last had CPU time
    blocked: float = 0.0  # the part of `waiting` in which no other thread could run


class StepWatch:
    """Watches the thread that calls `begin`.

    Args:
        blocked_limit: seconds after which a step hangs if its thread had no CPU time and the process was idle.
        busy_limit: seconds of CPU time in one step after which it hangs.
    """

    def __init__(self, *, blocked_limit: float, busy_limit: float) -> None:
        self.blocked_limit = blocked_limit
        self.busy_limit = busy_limit
        self._clock_id: int | None = None
        self._step: _Progress | None = None
        self._checking = threading.Lock()

    def begin(self) -> None:
        """Start a step on the calling thread."""
        if self._clock_id is None:
            self._clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self._step = _Progress(self.now(), self.cpu_time())

    def end(self) -> None:
        """End the step."""
        self._step = None

    def is_hung(self) -> bool:
        """Whether the current step hangs. To be called a few times in `blocked_limit` seconds, by any threads."""
        with self._checking:
            step = self._step
            if step is None:
                return False
            try:
                self._check(step)
            except OSError:  # the thread has just ended
                return False
            starved = step.waiting > _STARVED_LIMITS * self.blocked_limit
            return starved or step.blocked > self.blocked_limit or step.busy > self.busy_limit

    def _check(self, step: _Progress) -> None:
        now, cpu = self.now(), self.cpu_time()
        elapsed = now - step.checked_at
        if elapsed < _SHORTEST_INTERVAL * self.blocked_limit:
            return
        counted = min(elapsed, _LONGEST_INTERVAL * self.blocked_limit)
        if cpu > step.cpu:
            step.busy += min(cpu - step.cpu, counted)
            step.waiting = step.blocked = 0.0
        else:
            step.waiting += counted
            step.blocked += 0.0 if self.others_can_run() else counted
        step.checked_at, step.cpu = now, cpu

    def now(self) -> float:
        """Wall-clock time in seconds."""
        return time.monotonic()

    def cpu_time(self) -> float:
        """CPU time of the thread in seconds."""
        assert self._clock_id is not None
        return time.clock_gettime(self._clock_id)

    def others_can_run(self) -> bool:
        """Whether a thread of this process other than the calling one computes, or waits for a core or a disk."""
        return others_can_run()


# proc(5): R is running or waiting for a core, D is waiting for a disk or a lock of the system.
_CAN_RUN = frozenset("RD")


def others_can_run(tasks: Path = Path("/proc/self/task")) -> bool:
    """Whether a thread of this process other than the calling one computes, or waits for a core or a disk.

    A thread that waits for another thread cannot run. False on systems without /proc.
    """
    own = str(threading.get_native_id())
    with suppress(OSError):
        return any(_state(thread) in _CAN_RUN for thread in tasks.iterdir() if thread.name != own)
    return False


def _state(thread: Path) -> str:
    """One letter; "" if the thread has just ended."""
    with suppress(OSError):
        # The name before the state is in parentheses and may contain any character.
        return (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return ""
