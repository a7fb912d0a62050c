"""Downloads files from web servers. A file is right, or there is an error; nothing half-written is taken for whole.

A file is whole if it has the digest that was asked for. Where none is known, all of its bytes must have come in one
version, which the length and the ETag (or the date) of each response state. An interrupted download continues only in
the same version: the version is part of the partial file's name, and If-Range asks for it (RFC 9110, 13.1.5).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import httpx2

from serving.fetching.remote_source import is_private
from serving.fetching.retry import TRY_LATER, RetryableError, Watch, retry_after, with_retries

_MISSING = (403, 404, 410)  # object stores answer 403 for missing files
_NO_HEAD = (403, 405, 501)  # statuses of servers that answer GET only
_PLAIN = {"accept-encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Stated:
    """What a server states of a file.

    Args:
        size: number of bytes.
        etag: the ETag with its quotes; None without one that promises identical bytes.
        modified: the date of its last change, as the server writes it; None without one.
    """

    size: int
    etag: str | None = None
    modified: str | None = None

    @property
    def version(self) -> str | None:
        """What changes when the file does; None if the server states nothing of that kind."""
        return self.etag or self.modified


class Downloader:
    """A connection to a source; redirects are followed to https only, or from a server of this machine to another.

    Args:
        source: its address.
        watch: is told what happens, makes the errors, and may end a download.
        headers: HTTP headers for this source only.
    """

    def __init__(self, source: str, watch: Watch, headers: Mapping[str, str] | None = None) -> None:
        self._source, self._watch = source, watch
        self._is_local = source.startswith("http:")
        hooks = {"request": [self._check_private]}
        self._client = httpx2.Client(timeout=watch.timeout, headers=headers, follow_redirects=True, event_hooks=hooks)
        self.close = self._client.close

    def ask(self, url: str) -> Stated | None:
        """What the server states of a file; None if the file does not exist.

        Raises:
            watch.error: the server keeps failing, or does not state how large the file is.
        """

        def ask() -> Stated | None:
            with self._explained(url):
                response = self._client.head(url, headers=_PLAIN)
                if response.status_code in _NO_HEAD:
                    with self._client.stream("GET", url, headers=_PLAIN) as response:
                        pass
            if response.status_code in _MISSING:
                return None
            self._check_status(response, url)
            length = response.headers.get("content-length")
            if length is None:
                raise self._watch.error(url, "the server does not say how large the file is; fetch it by hand")
            return _stated(response, int(length))

        return with_retries(url, ask, self._watch)

    def ask_needed(self, url: str) -> Stated:
        """What the server states of a file, as `ask`; without the file, there is an error as well."""
        if (stated := self.ask(url)) is None:
            raise self._watch.error(url, "it is not there; the source is incomplete")
        return stated

    def fetch(self, url: str, path: Path, stated: Stated, digest: str | None = None) -> str:
        """Download one file; goes on where an earlier call was stopped.

        Args:
            url: the address.
            path: the path of the file; what is there is replaced.
            stated: the size that it must have, and its version, without which a digest must be given.
            digest: SHA-256 in hexadecimal that it must have; None: whatever this version has.

        Returns:
            its SHA-256 in hexadecimal.

        Raises:
            watch.error: the file has another size or digest, it changes meanwhile, or the server keeps failing.
            OSError: the disk.
        """
        key = hashlib.sha256(f"{url}\n{digest}\n{stated.version}\n{stated.size}".encode()).hexdigest()[:16]
        partial = path.with_name(f".{path.name}.{key}.partial")
        for other in path.parent.glob(f".{escape(path.name)}.*.partial"):
            if other != partial or not (digest or stated.etag):  # it is of another version, or cannot be continued
                other.unlink()

        def attempt() -> None:
            done = partial.stat().st_size if partial.exists() else 0
            if not (digest or stated.etag) or done > stated.size:
                done = 0
            if done < stated.size or done == 0:
                self._stream(url, partial, done, stated)

        with_retries(path.name, attempt, self._watch)
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())  # before it gets its name
        if digest not in (None, found):
            partial.unlink()
            raise self._watch.error(
                url,
                f"it does not have the digest {digest} but the SHA-256 {found}; if it was changed on purpose, lock it "
                "again or correct the digest",
            )
        partial.replace(path)
        return found

    def _stream(self, url: str, partial: Path, done: int, stated: Stated) -> None:
        """Download in one connection, continuing after the `done` bytes that `partial` already has."""
        headers = dict(_PLAIN)
        if done:
            headers["range"] = f"bytes={done}-"
            if stated.etag:
                headers["if-range"] = stated.etag
        with self._explained(url), self._client.stream("GET", url, headers=headers) as response:
            self._check_status(response, url)
            resumes = response.status_code == httpx2.codes.PARTIAL_CONTENT
            come = done if resumes else 0
            part = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("content-range", ""))
            if resumes and (part is None or (int(part[1]), int(part[2])) != (done, stated.size)):
                raise self._watch.error(url, "the server answers another part than was asked for; fetch it by hand")
            found = _stated(response, int(response.headers.get("content-length", stated.size - come)))
            is_other = stated.version is not None and found.version not in (None, stated.version)
            if is_other or found.size != stated.size - come:
                partial.unlink(missing_ok=True)
                raise self._watch.error(url, "it was changed while it was fetched; try again")
            with partial.open("ab" if resumes else "wb") as file:
                for chunk in response.iter_raw():
                    self._watch.check()
                    come += len(chunk)
                    if come > stated.size:
                        raise self._watch.error(url, f"the server sends more than the {stated.size:,} bytes it stated")
                    file.write(chunk)
        if come != stated.size:
            raise RetryableError(f"{come:,} of {stated.size:,} bytes came")

    def _check_status(self, response: httpx2.Response, url: str) -> None:
        if response.status_code in TRY_LATER:
            raise RetryableError(
                f"the server answered {response.status_code}", retry_after(response.headers.get("retry-after"))
            )
        if response.is_error:
            raise self._watch.error(url, f"the server answered {response.status_code}")

    def _check_private(self, request: httpx2.Request) -> None:
        """Called before each request, also one that follows a redirect."""
        if not is_private(str(request.url)) or (request.url.scheme == "http" and not self._is_local):
            raise self._watch.error(self._source, "it leads to plain http, which anybody could change; do not use it")

    @contextmanager
    def _explained(self, url: str) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise RetryableError("the connection broke") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._watch.error(url, f"it cannot be fetched ({type(error).__name__})") from error


def _stated(response: httpx2.Response, size: int) -> Stated:
    etag = response.headers.get("etag")
    strong = etag if etag and not etag.startswith("W/") else None  # RFC 9110, 8.8.1: weak ones do not promise it
    return Stated(size, strong, response.headers.get("last-modified"))
