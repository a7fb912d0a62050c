"""Downloads files from https addresses. A file is right, or there is an error; nothing half-written is taken for whole.

A file is whole if it has the digest that was asked for. Where none is known, all of its bytes must have come in one
version, which the length and the ETag (or the date) of each response state. An interrupted download continues only in
the same version: the version is part of the partial file's name, and If-Range asks for it (RFC 9110, 13.1.5).
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import MappingProxyType

import httpx2

from pipeline.fetching.retry import TRY_LATER, RetryableError, retry_after, with_retries
from pipeline.fetching.source import HttpsSource
from pipeline.fetching.wanted import COMPANIONS, check_space, needed_files, size_limit
from pipeline.weights.atomic import partial_file, write_json
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from pipeline.weights.shard_index import shard_names

_INDEX = "model.safetensors.index.json"
_CANDIDATES = (*COMPANIONS, "model.safetensors", _INDEX, "adapter_model.safetensors")
_PARALLEL_FROM = 32 << 20  # bytes; smaller files are faster in one stream
_MAX_INDEX = 64 << 20  # bytes of an index of shards; that of the largest models has a few
_TIMEOUT = httpx2.Timeout(30.0)
_MISSING = (403, 404, 410)  # object stores answer 403 for missing files
_PARALLEL = Path(__file__).with_name("parallel.py")


@dataclass(frozen=True, slots=True)
class Stated:
    """What a server states of a file.

    Args:
        size: in bytes.
        etag: with its quotes; None without one that promises identical bytes.
        modified: the date of its last change, as the server writes it; None without one.
    """

    size: int
    etag: str | None
    modified: str | None

    @property
    def version(self) -> str | None:
        """What changes when the file does; None if the server states nothing of that kind."""
        return self.etag or self.modified


def fetch_https(source: HttpsSource, folder: Path, digests: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Download the files of a checkpoint that exist below the address; returns their names.

    A web server does not list its files, so each usual file name is requested; the index names the shards. Redirects
    are followed only to https (or to this machine).

    Args:
        source: the address.
        folder: for the files; whole ones of the same version are kept.
        digests: SHA-256 in hexadecimal of files that must have it, by name.

    Raises:
        CheckpointError: the address has no checkpoint, a file has another digest or changes meanwhile, the disk is too
            small, or the server keeps failing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _client() as client:
        files = _files(client, source, folder)
        if unknown := digests.keys() - files.keys():
            raise CheckpointError(f"{source}: there is no {', '.join(sorted(unknown))}, of which a digest was given")
        check_space(folder, {name: stated.size for name, stated in files.items()})
        for name, stated in files.items():
            _fetch(client, source.url + name, folder / name, stated, digests.get(name))
    return list(files)


def fetch_file(url: str, path: Path, *, size: int | None = None, digest: str | None = None) -> Stated:
    """Download one file, unless it is there and whole; goes on where an earlier call was stopped.

    Args:
        url: the address.
        path: of the file.
        size: that it must have, in bytes; None: whatever the server states.
        digest: SHA-256 in hexadecimal that it must have; None: that of the version which the server has now.

    Raises:
        CheckpointError: the file has another size or digest, it changes meanwhile, or the server keeps failing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _client() as client:
        stated = _needed(client, url)
        if size not in (None, stated.size):
            raise CheckpointError(
                f"{url} has {stated.size:,} bytes now instead of {size:,}; lock it again if that was meant"
            )
        _fetch(client, url, path, stated, digest)
    return stated


def file_sizes(source: HttpsSource) -> dict[str, int]:
    """Bytes of each needed file below the address, by name.

    Raises:
        CheckpointError: there is no checkpoint, or the server keeps failing.
    """
    with _client() as client, tempfile.TemporaryDirectory() as folder:
        return {name: stated.size for name, stated in _files(client, source, Path(folder) / "index").items()}


def state(url: str) -> Stated:
    """What the server states of a file.

    Raises:
        CheckpointError: it is not there, or the server keeps failing.
    """
    with _client() as client:
        return _needed(client, url)


def recorded_digest(path: Path, stated: Stated) -> str | None:
    """The SHA-256 with which this version of a file was downloaded to this path; None if it was not."""
    recorded = _recorded(path).get(path.name, {})
    return recorded.get("sha256") if stated.version and recorded.get("version") == stated.version else None


def is_whole(path: Path, stated: Stated, digest: str | None) -> bool:
    """Whether a file is there with the size that the server states and with this digest; without one it is not."""
    return digest is not None and path.is_file() and path.stat().st_size == stated.size and sha256(path) == digest


def _client() -> httpx2.Client:
    return httpx2.Client(timeout=_TIMEOUT, follow_redirects=True, event_hooks={"response": [_only_https]})


def _files(client: httpx2.Client, source: HttpsSource, folder: Path) -> dict[str, Stated]:
    """The needed files; the index, which names shards, is downloaded into `folder` if there is one."""
    files = {name: stated for name in _CANDIDATES if (stated := _ask(client, source.url + name)) is not None}
    if _INDEX in files:
        if files[_INDEX].size > _MAX_INDEX:
            raise CheckpointError(f"{source.url}{_INDEX} has {files[_INDEX].size:,} bytes, the limit is {_MAX_INDEX:,}")
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(client, source.url + _INDEX, folder / _INDEX, files[_INDEX], None)
        files |= {name: _needed(client, source.url + name) for name in shard_names(folder / _INDEX)}
    return {name: files[name] for name in needed_files(files)}


def _ask(client: httpx2.Client, url: str) -> Stated | None:
    """What the server states of a file; None if the file does not exist."""

    def ask() -> Stated | None:
        try:
            response = client.head(url, headers={"accept-encoding": "identity"})
        except httpx2.TransportError as error:
            raise RetryableError("the connection failed") from error
        if response.status_code in _MISSING:
            return None
        _check(response, url)
        length = response.headers.get("content-length")
        if length is None:
            raise CheckpointError(f"{url}: the server does not say how large the file is; fetch it by hand")
        return _stated(response, int(length))

    return with_retries(url, ask)


def _needed(client: httpx2.Client, url: str) -> Stated:
    stated = _ask(client, url)
    if stated is None:
        raise CheckpointError(f"{url} is not there; the source is incomplete")
    return stated


def _stated(response: httpx2.Response, size: int) -> Stated:
    etag = response.headers.get("etag")
    strong = etag if etag and not etag.startswith("W/") else None  # RFC 9110, 8.8.1: weak ones do not promise it
    return Stated(size, strong, response.headers.get("last-modified"))


def _fetch(client: httpx2.Client, url: str, path: Path, stated: Stated, digest: str | None) -> None:
    if is_whole(path, stated, digest or recorded_digest(path, stated)):
        return
    say(f"Fetching {path.name} ({stated.size:,} bytes)")
    key = hashlib.sha256(f"{url}\n{digest}\n{stated.version}\n{stated.size}".encode()).hexdigest()[:16]
    partial = path.with_name(f".{path.name}.{key}.partial")
    for other in path.parent.glob(f".{escape(path.name)}.*.partial*"):
        if other != partial or not (digest or stated.etag):  # of another version, or what cannot be continued
            other.unlink()

    def attempt() -> None:
        done = partial.stat().st_size if partial.exists() else 0
        if not (digest or stated.etag) or done > stated.size:
            done = 0
        if digest and done == 0 and stated.size >= _PARALLEL_FROM and _in_parallel(url, partial, digest):
            return
        if done < stated.size or done == 0:
            _stream(client, url, partial, done, stated)

    with size_limit(stated.size):
        with_retries(path.name, attempt)
    found = sha256(partial)
    if digest not in (None, found):
        partial.unlink()
        raise CheckpointError(
            f"{url} does not have the digest {digest} but the SHA-256 {found}; if it was changed on purpose, lock it "
            "again or correct --sha256"
        )
    with partial_file(path) as whole:  # writes it to the disk before it gets its name
        partial.replace(whole)
    write_json(_record(path), {**_recorded(path), path.name: {"version": stated.version, "sha256": found}})


def _stream(client: httpx2.Client, url: str, partial: Path, done: int, stated: Stated) -> None:
    """Download in one connection, continuing after the `done` bytes that `partial` already has."""
    headers = {"accept-encoding": "identity"}
    if done:
        headers["range"] = f"bytes={done}-"
        if stated.etag:
            headers["if-range"] = stated.etag
    try:
        with client.stream("GET", url, headers=headers) as response:
            _check(response, url)
            resumes = response.status_code == httpx2.codes.PARTIAL_CONTENT
            come = _first_byte(response, url, done, stated) if resumes else 0
            _check_version(response, url, stated, partial, length=stated.size - come)
            with partial.open("ab" if resumes else "wb") as file:
                for chunk in response.iter_raw():
                    come += len(chunk)
                    if come > stated.size:
                        raise CheckpointError(f"{url}: the server sends more than the {stated.size:,} bytes it stated")
                    file.write(chunk)
    except httpx2.TransportError as error:
        raise RetryableError("the connection broke") from error
    if come != stated.size:
        raise RetryableError(f"{come:,} of {stated.size:,} bytes came")


def _first_byte(response: httpx2.Response, url: str, done: int, stated: Stated) -> int:
    """Where a partial answer begins: after the bytes that are there."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("content-range", ""))
    if found is None or (int(found[1]), int(found[2])) != (done, stated.size):
        raise CheckpointError(f"{url}: the server answers another part than was asked for; fetch the file by hand")
    return done


def _check_version(response: httpx2.Response, url: str, stated: Stated, partial: Path, *, length: int) -> None:
    """Refuse a response that is of another version than the one that is being fetched."""
    found = _stated(response, int(response.headers.get("content-length", length)))
    if found.size != length or (found.version is not None and found.version != stated.version):
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{url} was changed while it was fetched; run this again")


def _in_parallel(url: str, partial: Path, digest: str) -> bool:
    """Download eight ranges at a time with hf-transfer; False if it is not installed, fails, or gives other bytes.

    It writes ranges out of order, so its file is never continued, and only a digest can say that it is whole.
    """
    parallel = partial.with_name(f"{partial.name}.parallel")
    command = [sys.executable, str(_PARALLEL), url, str(parallel)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode != 0 or sha256(parallel) != digest:
            return False
        parallel.replace(partial)
    finally:
        parallel.unlink(missing_ok=True)
    return True


def _record(path: Path) -> Path:
    """The file, beside the folder, that says with which digest each version of its files was downloaded."""
    return path.parent.with_name(f".{path.parent.name}.versions.json")


def _recorded(path: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(_record(path).read_bytes())
    except (OSError, ValueError):  # none, or damaged: then the files are fetched again
        return {}
    return found if isinstance(found, dict) else {}


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
