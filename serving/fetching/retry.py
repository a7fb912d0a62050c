"""Tries again when a server is busy or a connection breaks, for as long as whoever watches lets it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")
TRY_LATER = (408, 425, 429, 500, 502, 503, 504)  # statuses of a server that may answer later
MAX_WAIT = 120.0


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What a download tells, and what may end it.

    Args:
        error: makes the error to raise of where and why. Where is an address, a source or a file's name, and why names
            none of these.
        check: called with each piece and before each attempt; what it raises ends the download.
        say: called with messages for people.
        sleep: waits for so many seconds before the next attempt.
        attempts: how often a server is asked that does not answer.
        timeout: seconds for a connection, and between two pieces.
        remedy: what to do when a server did not answer that often.
    """

    error: Callable[[str, str], Exception]
    check: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda message: None
    sleep: Callable[[float], None] = time.sleep
    attempts: int = 8
    timeout: float = 30.0
    remedy: str = "try again later"


class RetryableError(Exception):
    """The server may answer later.

    Args:
        reason: message for the user; contains no header and no token.
        after: seconds that the server asked to wait; None if it gave none.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


def with_retries(what: str, attempt: Callable[[], T], watch: Watch) -> T:
    """Call `attempt` until it does not raise `RetryableError`, with growing, random pauses.

    Raises:
        watch.error: `attempt` raised `RetryableError` every time.
    """
    for count in range(1, watch.attempts + 1):
        watch.check()
        try:
            return attempt()
        except RetryableError as problem:
            if count == watch.attempts:
                times = f", {count} times" if count > 1 else ""
                raise watch.error(what, f"{problem}{times}; {watch.remedy}") from problem
            # Full jitter: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
            wait = min(MAX_WAIT, problem.after if problem.after is not None else random.uniform(0.1, 0.5 * 2**count))
            watch.say(f"{what}: {problem}; trying again in {wait:.1f} s")
            watch.sleep(wait)
    raise AssertionError("unreachable")


def retry_after(value: str | None) -> float | None:
    """Seconds in a Retry-After header: a number, or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
