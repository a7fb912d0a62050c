"""Fetched adapters on disk, by digest: the least recently used are removed, never one that a process uses.

A folder appears under its digest when it is complete and has been checked, so a download that was broken off is never
taken for an adapter. Locks (flock) are held by file descriptors, so those of a process that was killed are gone.

with cache.lease(digest, fetch) as folder: ...
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serving.errors import AdapterError, EngineBusyError
from serving.weights.adapter_files import adapter_digest

logger = logging.getLogger(__name__)
_PARTIAL: Final = ".partial-"
_LOCK: Final = ".lock"


class DiskCache:
    """Several processes and threads may use one folder.

    Args:
        root: the folder; made where there is none.
        max_bytes: limit of all complete adapters in it; downloads come on top.
    """

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    @contextmanager
    def lease(self, digest: str, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """The folder with the adapter's files, which stays inside the block; `fetch` puts them into an empty folder.

        Raises:
            AdapterError: what was fetched has another digest (see `adapter_digest`), or is larger than the cache.
            EngineBusyError: adapters in use leave no room.
            OSError: the disk; and whatever `fetch` raises.
        """
        folder = self._root / digest.removeprefix("sha256:")
        descriptor = self._hold(folder, digest)
        if descriptor is None:
            descriptor = self._fetch(folder, digest, fetch)
        try:
            yield folder
        finally:
            os.close(descriptor)

    def _hold(self, folder: Path, digest: str) -> int | None:
        """A descriptor that keeps the folder from being removed; None if it is not there, or damaged."""
        self._root.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if not folder.is_dir():
                return None
            descriptor = _lock(folder, fcntl.LOCK_SH)
            assert descriptor is not None, "only removal takes it alone, under the same lock as this"
            os.utime(folder)
        if adapter_digest(folder) == digest:
            return descriptor
        logger.warning("%s has been damaged and is fetched again", folder)
        with self._alone():
            if folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
                folder.rename(Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._root)))
        os.close(descriptor)
        return None

    def _fetch(self, folder: Path, digest: str, fetch: Callable[[Path], None]) -> int:
        with self._alone():
            self._remove_abandoned()
            partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._root))
            descriptor = _lock(partial, fcntl.LOCK_SH)
        assert descriptor is not None, "nobody else knows the new folder"
        try:
            fetch(partial)
            if (found := adapter_digest(partial)) != digest:
                raise AdapterError(f"what was fetched has the digest {found}, not {digest}; check source and digest")
            with self._alone():
                if not folder.is_dir():
                    self._make_room(_size(partial))
                    partial.rename(folder)
                    os.utime(folder)
                    return descriptor
                other = _lock(folder, fcntl.LOCK_SH)  # another process holds it, which was first
                assert other is not None
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        os.close(descriptor)
        shutil.rmtree(partial, ignore_errors=True)
        return other

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only for short work: other threads and processes wait."""
        with (self._root / _LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, needed: int) -> None:
        if needed > self._max_bytes:
            raise AdapterError(f"it has {needed:,} bytes, and the disk cache {self._max_bytes:,}: ADAPTER_CACHE_MB")
        folders = [path for path in self._root.iterdir() if path.is_dir() and not path.name.startswith(_PARTIAL)]
        folders.sort(key=lambda path: path.stat().st_mtime_ns)
        used = sum(map(_size, folders))
        for folder in folders:
            if used + needed <= self._max_bytes:
                return
            size = _size(folder)
            if self._remove(folder):
                used -= size
        if used + needed > self._max_bytes:
            raise EngineBusyError(
                f"it needs {needed:,} bytes on disk, and adapters in use leave {max(0, self._max_bytes - used):,} of "
                f"{self._max_bytes:,}; try again later, or set ADAPTER_CACHE_MB higher"
            )

    def _remove_abandoned(self) -> None:
        for path in self._root.glob(f"{_PARTIAL}*"):
            self._remove(path)

    def _remove(self, folder: Path) -> bool:
        """Remove a folder that nobody uses. False if it is in use, or somebody else removes it."""
        try:
            descriptor = _lock(folder, fcntl.LOCK_EX)
        except FileNotFoundError:  # the thread whose fetch failed removes its folder without the lock
            return False
        if descriptor is None:
            return False
        if not folder.name.startswith(_PARTIAL):  # not complete from now on, whenever this process is killed
            folder = folder.rename(Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._root)))
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        return True


def _lock(folder: Path, kind: int) -> int | None:
    """A descriptor that locks the folder until it is closed; None if somebody else's lock forbids it.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
