"""Finds out who calls the gateway, and limits how many predictions each caller starts."""

from __future__ import annotations

import math
import time

from starlette.requests import HTTPConnection

from gateway.errors import TooManyPredictionsError, UnauthorizedError
from gateway.keys.key_file import ApiKey, KeyFile

COOKIE = "gateway_key"
_BUSY_SECONDS = 1.0  # after which one of a caller's predictions may have ended


class Caller:
    """The holder of a key."""

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self._tokens = key.per_minute or 0.0  # a full bucket: a minute's predictions may come at once
        self._time = time.monotonic()

    @property
    def name(self) -> str:
        """The owner of the caller's predictions."""
        return self.key.name

    def take(self, num_active: int) -> None:
        """Note that the caller starts a prediction; `num_active` of its predictions run or wait.

        Raises:
            TooManyPredictionsError: the caller may not start one now.
        """
        limit, rate = self.key.concurrent, self.key.per_minute
        if limit is not None and num_active >= limit:
            text = f"the key {self.name} may have {limit:,} predictions at the same time; wait for one to end"
            raise TooManyPredictionsError(text, retry_after=_BUSY_SECONDS)
        if rate is None:
            return
        now = time.monotonic()
        capacity = max(1.0, rate)
        self._tokens = min(capacity, self._tokens + (now - self._time) * rate / 60)
        self._time = now
        if self._tokens < 1:
            wait = math.ceil((1 - self._tokens) * 60 / rate)
            text = f"the key {self.name} may start {rate:g} predictions a minute; wait {wait} seconds"
            raise TooManyPredictionsError(text, retry_after=wait)
        self._tokens -= 1


class Callers:
    """All callers, as far as this process has seen them; limits begin anew when it is restarted.

    Args:
        file: the file of the keys, which is read at each request, so that a revoked key is refused at once.
    """

    def __init__(self, file: KeyFile) -> None:
        self._file = file
        self._callers: dict[str, Caller] = {}

    def identify(self, request: HTTPConnection) -> Caller:
        """The caller who sent a request, by `Authorization: Bearer KEY`, `Token KEY`, or the cookie of the page /login.

        Raises:
            UnauthorizedError: there is no key, or it is unknown or revoked.
        """
        key = key_of(request)
        if key is None:
            text = "this gateway asks for an API key: send it as Authorization: Bearer KEY; in a browser open /login"
            raise UnauthorizedError(text)
        found = self._file.find(key)
        if found is None:
            raise UnauthorizedError("the API key is unknown or was revoked")
        return self._callers.setdefault(found.id, Caller(found))

    def knows(self, key: str) -> bool:
        """Whether a key is valid."""
        return self._file.find(key) is not None

    def close(self) -> None:
        """Close the file of the keys."""
        self._file.close()


def key_of(request: HTTPConnection) -> str | None:
    """The key that a request carries; None if it carries none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token"):
        return key.strip()
    return request.cookies.get(COOKIE) or None
