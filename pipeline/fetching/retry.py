"""Tries again when a server is busy or a connection breaks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError

T = TypeVar("T")
ATTEMPTS = 8
TRY_LATER = (408, 425, 429, 500, 502, 503, 504)  # statuses of a server that may answer later
MAX_WAIT = 120.0


class RetryableError(Exception):
    """The server may answer later.

    Args:
        reason: message for the user; contains no header and no token.
        after: seconds that the server asked to wait; None if it gave none.
    """

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


def with_retries(what: str, attempt: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Call `attempt` until it does not raise `RetryableError`: up to 8 times, with growing, random pauses.

    Raises:
        CheckpointError: `attempt` raised `RetryableError` every time.
    """
    for count in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except RetryableError as problem:
            if count == ATTEMPTS:
                raise CheckpointError(
                    f"{what}: {problem}, {ATTEMPTS} times; run this again later, it continues where it stopped"
                ) from problem
            # Full jitter: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
            wait = min(MAX_WAIT, problem.after if problem.after is not None else random.uniform(0.1, 0.5 * 2**count))
            say(f"{what}: {problem}; trying again in {wait:.1f} s")
            sleep(wait)
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
