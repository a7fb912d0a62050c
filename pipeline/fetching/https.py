"""Downloads the files of a checkpoint from web servers, and remembers what was whole (`serving.fetching.download`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from glob import escape
from pathlib import Path
from types import MappingProxyType

from pipeline.fetching.source import HttpsSource
from pipeline.fetching.wanted import COMPANIONS, check_space, needed_files, size_limit
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.atomic import partial_file, write_json
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import shard_names
from serving.fetching.download import Downloader, Stated

_INDEX = "model.safetensors.index.json"
_CANDIDATES = (*COMPANIONS, "model.safetensors", _INDEX, "adapter_model.safetensors")
_PARALLEL_FROM = 32 << 20  # bytes; smaller files are faster in one stream
_MAX_INDEX = 64 << 20  # bytes of an index of shards; that of the largest models has a few
_PARALLEL = Path(__file__).with_name("parallel.py")


def fetch_https(source: HttpsSource, folder: Path, digests: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Download the files of a checkpoint that exist below the address; returns their names.

    A web server does not list its files, so each usual file name is requested; the index names the shards. Redirects
    are followed only to https (or from a server of this machine to another).

    Args:
        folder: the folder that the files go to; whole ones of the same version are kept.
        digests: SHA-256 in hexadecimal of files that must have it, by name.

    Raises:
        CheckpointError: the address has no checkpoint, a file has another digest or changes meanwhile, the disk is too
            small, or the server keeps failing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _downloader(source.url) as downloader:
        files = _files(downloader, source, folder)
        if unknown := digests.keys() - files.keys():
            raise CheckpointError(f"{source}: there is no {', '.join(sorted(unknown))}, of which a digest was given")
        check_space(folder, {name: stated.size for name, stated in files.items()})
        for name, stated in files.items():
            _fetch(downloader, source.url + name, folder / name, stated, digests.get(name))
    return list(files)


def fetch_file(url: str, path: Path, *, size: int | None = None, digest: str | None = None) -> Stated:
    """Download one file, unless it is there and whole; goes on where an earlier call was stopped.

    Args:
        size: the size that it must have, in bytes; None takes what the server states.
        digest: the SHA-256 in hexadecimal that it must have; None takes the version which the server has now.

    Raises:
        CheckpointError: the file has another size or digest, it changes meanwhile, or the server keeps failing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _downloader(url) as downloader:
        stated = downloader.ask_needed(url)
        if size not in (None, stated.size):
            raise CheckpointError(
                f"{url} has {stated.size:,} bytes now instead of {size:,}; lock it again if that was meant"
            )
        _fetch(downloader, url, path, stated, digest)
    return stated


def file_sizes(source: HttpsSource) -> dict[str, int]:
    """The bytes of each needed file below the address, by name.

    Raises:
        CheckpointError: there is no checkpoint, or the server keeps failing.
    """
    with _downloader(source.url) as downloader, tempfile.TemporaryDirectory() as folder:
        return {name: stated.size for name, stated in _files(downloader, source, Path(folder) / "index").items()}


def state(url: str) -> Stated:
    """What the server states of a file.

    Raises:
        CheckpointError: it is not there, or the server keeps failing.
    """
    with _downloader(url) as downloader:
        return downloader.ask_needed(url)


def recorded_digest(path: Path, stated: Stated) -> str | None:
    """The SHA-256 with which this version of a file was downloaded to this path; None if it was not."""
    recorded = _recorded(path).get(path.name, {})
    return recorded.get("sha256") if stated.version and recorded.get("version") == stated.version else None


def is_whole(path: Path, stated: Stated, digest: str | None) -> bool:
    """Whether a file is there with the size that the server states and with this digest; without one it is not."""
    return digest is not None and path.is_file() and path.stat().st_size == stated.size and sha256(path) == digest


def _downloader(url: str) -> closing[Downloader]:
    return closing(Downloader(url, CONSOLE))


def _files(downloader: Downloader, source: HttpsSource, folder: Path) -> dict[str, Stated]:
    """The needed files; the index, which names shards, is downloaded into `folder` if there is one."""
    files = {name: stated for name in _CANDIDATES if (stated := downloader.ask(source.url + name)) is not None}
    if _INDEX in files:
        if files[_INDEX].size > _MAX_INDEX:
            raise CheckpointError(f"{source.url}{_INDEX} has {files[_INDEX].size:,} bytes, the limit is {_MAX_INDEX:,}")
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(downloader, source.url + _INDEX, folder / _INDEX, files[_INDEX], None)
        files |= {name: downloader.ask_needed(source.url + name) for name in shard_names(folder / _INDEX)}
    return {name: files[name] for name in needed_files(files)}


def _fetch(downloader: Downloader, url: str, path: Path, stated: Stated, digest: str | None) -> None:
    if is_whole(path, stated, digest or recorded_digest(path, stated)):
        return
    say(f"Fetching {path.name} ({stated.size:,} bytes)")
    found = _in_parallel(url, path, stated.size, digest) or downloader.fetch(url, path, stated, digest)
    write_json(_record(path), {**_recorded(path), path.name: {"version": stated.version, "sha256": found}})


def _in_parallel(url: str, path: Path, size: int, digest: str | None) -> str | None:
    """Download a large file of a known digest in eight ranges at a time; returns the digest.

    hf-transfer writes ranges out of order, so its file is never continued, and only a digest can say that it is whole.

    Returns:
        None if it is not installed, fails, or gives other bytes, or if one stream has begun already.
    """
    parallel = path.with_name(f".{path.name}.parallel")
    parallel.unlink(missing_ok=True)  # of a process that was killed
    if digest is None or size < _PARALLEL_FROM or any(path.parent.glob(f".{escape(path.name)}.*.partial")):
        return None
    command = [sys.executable, str(_PARALLEL), url, str(parallel)]
    try:
        with size_limit(size):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode != 0 or sha256(parallel) != digest:
            return None
        with partial_file(path) as whole:  # writes it to the disk before it gets its name
            parallel.replace(whole)
    finally:
        parallel.unlink(missing_ok=True)
    return digest


def _record(path: Path) -> Path:
    """The path of the file beside the folder that says with which digest each version of its files was downloaded."""
    return path.parent.with_name(f".{path.parent.name}.versions.json")


def _recorded(path: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(_record(path).read_bytes())
    except (OSError, ValueError):  # none, or damaged: then the files are fetched again
        return {}
    return found if isinstance(found, dict) else {}
