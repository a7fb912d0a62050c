"""Downloads a checkpoint from an https address, in parallel with hf-transfer or as one stream that can resume."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx2

from pipeline.fetching.retry import TRY_LATER, RetryableError, retry_after, with_retries
from pipeline.fetching.source import HttpsSource
from pipeline.fetching.wanted import COMPANIONS, check_space, needed_files, size_limit
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.shard_index import shard_names

_INDEX = "model.safetensors.index.json"
_CANDIDATES = (*COMPANIONS, "model.safetensors", _INDEX, "adapter_model.safetensors")
_PARALLEL_FROM = 32 << 20  # bytes; smaller files are faster in one stream
_MAX_INDEX = 64 << 20  # bytes of an index of shards; that of the largest models has a few
_TIMEOUT = httpx2.Timeout(30.0)


def fetch_https(source: HttpsSource, folder: Path) -> list[str]:
    """Download the files of a checkpoint that exist below the address.

    A web server does not list its files, so each usual file name is requested; the index names the shards. Redirects
    are followed only to https (or to this machine).

    Raises:
        CheckpointError: the address has no checkpoint, the disk is too small, or the server keeps failing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _client() as client:
        sizes = _sizes(client, source, folder)
        check_space(folder, sizes)
        for name, size in sizes.items():
            if not ((folder / name).is_file() and (folder / name).stat().st_size == size):
                say(f"Fetching {name} ({size:,} bytes)")
                _download(client, source.url + name, folder / name, size)
    return list(sizes)


def fetch_file(url: str, path: Path, size: int) -> None:
    """Download one file whose size is known; goes on where an earlier call was stopped.

    Raises:
        CheckpointError: the file has another size, or the server keeps failing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _client() as client:
        found = _needed_size(client, url)
        if found != size:
            raise CheckpointError(f"{url} has {found:,} bytes now instead of {size:,}; lock it again if that was meant")
        _download(client, url, path, size)


def file_sizes(source: HttpsSource) -> dict[str, int]:
    """Bytes of each needed file below the address, by name.

    Raises:
        CheckpointError: there is no checkpoint, or the server keeps failing.
    """
    with _client() as client, tempfile.TemporaryDirectory() as folder:
        return _sizes(client, source, Path(folder))


def file_size(url: str) -> int:
    """Bytes of one file.

    Raises:
        CheckpointError: it is not there, or the server keeps failing.
    """
    with _client() as client:
        return _needed_size(client, url)


def strong_etag(url: str) -> str | None:
    """The file's ETag with its quotes, as the server states it; None without one that promises identical bytes.

    Raises:
        CheckpointError: the server keeps failing.
    """
    with _client() as client:
        response = _head(client, url)
    etag = response.headers.get("etag") if response is not None else None
    return None if not etag or etag.startswith("W/") else etag  # RFC 9110, 8.8.1: weak ones do not


def _client() -> httpx2.Client:
    return httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, event_hooks={"response": [_only_https]})


def _sizes(client: httpx2.Client, source: HttpsSource, folder: Path) -> dict[str, int]:
    """Of the needed files; the index, which names shards, is downloaded into `folder` if there is one."""
    sizes = {name: size for name in _CANDIDATES if (size := _size(client, source.url + name)) is not None}
    if _INDEX in sizes:
        if sizes[_INDEX] > _MAX_INDEX:
            raise CheckpointError(f"{source.url}{_INDEX} has {sizes[_INDEX]:,} bytes, the limit is {_MAX_INDEX:,}")
        _download(client, source.url + _INDEX, folder / _INDEX, sizes[_INDEX])
        sizes |= {name: _needed_size(client, source.url + name) for name in shard_names(folder / _INDEX)}
    return {name: sizes[name] for name in needed_files(sizes)}


def _size(client: httpx2.Client, url: str) -> int | None:
    """The size of a file in bytes; None if the file does not exist."""
    response = _head(client, url)
    if response is None:
        return None
    length = response.headers.get("content-length")
    if length is None:
        raise CheckpointError(f"{url}: the server does not say how large the file is; fetch it by hand")
    return int(length)


def _head(client: httpx2.Client, url: str) -> httpx2.Response | None:
    """What the server states of a file; None if the file does not exist."""

    def ask() -> httpx2.Response | None:
        try:
            response = client.head(url, headers={"accept-encoding": "identity"})
        except httpx2.TransportError as error:
            raise RetryableError("the connection failed") from error
        if response.status_code in (403, 404, 410):  # object stores answer 403 for missing files
            return None
        _check(response, url)
        return response

    return with_retries(url, ask)


def _needed_size(client: httpx2.Client, url: str) -> int:
    size = _size(client, url)
    if size is None:
        raise CheckpointError(f"{url} is named by the index and is not there; the checkpoint is incomplete")
    return size


def _download(client: httpx2.Client, url: str, path: Path, size: int) -> None:
    partial = path.with_name(path.name + ".partial")

    def attempt() -> None:
        done = partial.stat().st_size if partial.exists() else 0
        if done > size:
            partial.unlink()
            done = 0
        if done == 0 and size >= _PARALLEL_FROM and _in_parallel(url, partial):
            if partial.stat().st_size == size:
                return
            partial.unlink()
            raise RetryableError("a download in parallel ranges had another size")
        _stream(client, url, partial, done, size)

    with size_limit(size):
        with_retries(path.name, attempt)
    partial.replace(path)


def _stream(client: httpx2.Client, url: str, partial: Path, done: int, size: int) -> None:
    """Download in one connection, continuing after the `done` bytes that `partial` already has."""
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={done}-"} if done else {})
    try:
        with client.stream("GET", url, headers=headers) as response:
            _check(response, url)
            resumes = done > 0 and response.status_code == httpx2.codes.PARTIAL_CONTENT
            with partial.open("ab" if resumes else "wb") as file:
                come = done if resumes else 0
                for chunk in response.iter_raw(1 << 20):
                    come += len(chunk)
                    if come > size:
                        raise CheckpointError(f"{url}: the server sends more than the {size:,} bytes it stated")
                    file.write(chunk)
    except httpx2.TransportError as error:
        raise RetryableError("the connection broke") from error
    if partial.stat().st_size != size:
        raise RetryableError(f"{partial.stat().st_size:,} of {size:,} bytes came")


def _in_parallel(url: str, partial: Path) -> bool:
    """Download eight ranges at a time with hf-transfer; False if it is not installed or fails."""
    try:
        import hf_transfer
    except ImportError:
        return False
    download: Any = hf_transfer.download
    try:
        download(url, str(partial), 8, 16 << 20, headers={}, parallel_failures=3, max_retries=5)
    except Exception:  # hf-transfer raises bare Exception; the stream that follows reports the cause
        partial.unlink(missing_ok=True)
        return False
    return True


def _check(response: httpx2.Response, url: str) -> None:
    if response.status_code in TRY_LATER:
        raise RetryableError(
            f"the server answered {response.status_code}", retry_after(response.headers.get("retry-after"))
        )
    if response.is_error:
        raise CheckpointError(f"{url}: the server answered {response.status_code}")


def _only_https(response: httpx2.Response) -> None:
    if response.request.url.scheme != "https" and response.request.url.host not in ("127.0.0.1", "localhost"):
        raise CheckpointError(f"{response.request.url.host}: a redirect leads to plain http; do not use this source")
