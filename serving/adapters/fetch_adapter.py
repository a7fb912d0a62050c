"""Fetch the files of one adapter from the model hub or a web server, within limits of time and size.

Unlike `scripts/fetch`, which prepares folders of any size, this runs in a thread of a server: it prints nothing,
changes no limit of the process, and stops when the server does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import quote

import httpx2

from serving.adapters.remote_source import HttpsSource, HubSource, RemoteSource, is_private
from serving.errors import AdapterError
from serving.weights.adapter_files import COMPANIONS, CONFIG, TENSORS, files_that_count

T = TypeVar("T")
_ATTEMPTS: Final = 3
_TIMEOUT: Final = httpx2.Timeout(10.0)  # of a connection, and between two pieces
_TRY_LATER: Final = (408, 425, 429, 500, 502, 503, 504)
_MISSING: Final = (403, 404, 410)  # object stores answer 403 for missing files
_MAX_LISTING: Final = 16 << 20  # bytes of a repository's list of files
_OFFLINE: Final = "this server is offline (HF_HUB_OFFLINE=1), so it cannot fetch it; the operator sets HF_HUB_OFFLINE=0"


class _TryLaterError(Exception):
    """The server may answer later."""


@dataclass(frozen=True)
class FetchLimits:
    """When to give up.

    Args:
        max_bytes: of all files together.
        seconds: for all of them.
        is_stopped: whether the result is no longer wanted.
    """

    max_bytes: int
    seconds: float
    is_stopped: Callable[[], bool] = lambda: False


def fetch_adapter(source: RemoteSource, folder: Path, limits: FetchLimits) -> None:
    """Download the files of an adapter that are read.

    Raises:
        AdapterError: it cannot be had; the message does not name the source.
        OSError: the disk.
    """
    try:
        with _Download(limits, is_local=isinstance(source, HttpsSource) and source.url.startswith("http:")) as download:
            if isinstance(source, HubSource):
                download.from_hub(source, folder)
            else:
                for name in (CONFIG, TENSORS, *COMPANIONS):
                    download.file(source.url + name, folder / name, {}, needed=name in (CONFIG, TENSORS))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise AdapterError(f"its source cannot be reached ({type(error).__name__}); try again later") from error


class _Download:
    """The download of one adapter.

    Args:
        limits: when to give up.
        is_local: whether the source is a server on this machine; only then plain http is followed there.
    """

    def __init__(self, limits: FetchLimits, *, is_local: bool) -> None:
        self._limits = limits
        self._is_local = is_local
        self._deadline = time.monotonic() + limits.seconds
        self._num_bytes = 0
        hooks = {"request": [self._check_private]}
        self._client = httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, event_hooks=hooks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def from_hub(self, source: HubSource, folder: Path) -> None:
        """Download what the repository lists, at one commit."""
        from huggingface_hub import constants, get_token

        if constants.HF_HUB_OFFLINE:
            raise AdapterError(_OFFLINE)
        self._is_local = constants.ENDPOINT.startswith("http:")
        headers = {} if (token := get_token()) is None else {"authorization": f"Bearer {token}"}
        revision = quote(source.revision or "main", safe="")
        response = self._retried(lambda: self._listing(f"api/models/{source.repo}/revision/{revision}", headers))
        content = response.json()
        commit, siblings = content["sha"], [file["rfilename"] for file in content["siblings"]]
        for name in {*files_that_count(siblings), CONFIG, TENSORS}:
            url = f"{constants.ENDPOINT}/{source.repo}/resolve/{quote(commit, safe='')}/{quote(name)}"
            self.file(url, folder / name, headers, needed=True)

    def file(self, url: str, path: Path, headers: dict[str, str], *, needed: bool) -> None:
        """Download one file; without it where the server has none and it is not needed."""
        path.parent.mkdir(exist_ok=True)
        before = self._num_bytes

        def attempt() -> None:
            self._num_bytes = before
            with self._open(url, headers) as response:
                if response.status_code in _MISSING and not needed:
                    return
                _check_status(response, path.name)
                with path.open("wb") as file:
                    for chunk in response.iter_raw(1 << 18):
                        self._count(len(chunk))
                        file.write(chunk)

        self._retried(attempt)

    def _listing(self, path: str, headers: dict[str, str]) -> httpx2.Response:
        from huggingface_hub import constants

        with self._open(f"{constants.ENDPOINT}/{path}", headers) as response:
            _check_status(response, "repository")
            data = b""
            for chunk in response.iter_raw(1 << 18):
                data += chunk
                if len(data) > _MAX_LISTING:
                    raise AdapterError("its repository has too many files; put the adapter into one of its own")
        return httpx2.Response(200, content=data)

    def _open(self, url: str, headers: dict[str, str]) -> AbstractContextManager[httpx2.Response]:
        return self._client.stream("GET", url, headers={**headers, "accept-encoding": "identity"})

    def _check_private(self, request: httpx2.Request) -> None:
        """Called before each request, also one that follows a redirect."""
        url = str(request.url)
        if not is_private(url) or (url.startswith("http:") and not self._is_local):
            raise AdapterError("its source leads to plain http, which anybody could change; do not use it")

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._limits.max_bytes:
            raise AdapterError(f"its files have over {self._limits.max_bytes:,} bytes, which is the limit")
        self._check_time()

    def _check_time(self) -> None:
        if self._limits.is_stopped():
            raise AdapterError("the server was closed while it was fetched")
        if time.monotonic() > self._deadline:
            raise AdapterError(f"it was not fetched within {self._limits.seconds:g} s; try again later")

    def _retried(self, attempt: Callable[[], T]) -> T:
        for count in range(1, _ATTEMPTS + 1):
            self._check_time()
            try:
                return attempt()
            except (_TryLaterError, httpx2.TransportError) as error:
                if count == _ATTEMPTS:
                    raise AdapterError(f"its source does not answer ({error}); try again later") from error
            time.sleep(0.5 * count)
        raise AssertionError("unreachable")


def _check_status(response: httpx2.Response, what: str) -> None:
    if response.status_code in _TRY_LATER:
        raise _TryLaterError(f"status {response.status_code}")
    if response.is_error:
        raise AdapterError(f"its source answers {response.status_code} for {what}; it is missing or may not be read")
