"""Where the files of an adapter are: in its own folder, or fetched into the disk cache.

Also what callers see of what goes wrong there: never a path or an address of the operator's, which go to the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serving.adapters.disk_cache import DiskCache
from serving.adapters.fetch_adapter import FetchLimits, fetch_adapter
from serving.adapters.registry import AdapterEntry
from serving.config import Settings
from serving.errors import AdapterError, EngineBusyError, ServingError

logger = logging.getLogger(__name__)
DEFAULT_MEMORY_MB: Final = 1024
DEFAULT_CACHE_MB: Final = 10_240
DEFAULT_CACHE_DIR: Final = Path("~/.cache/adapters")
FETCH_SECONDS: Final = 600.0
_COMPANION_BYTES: Final = 64 << 20  # beside the tensors, which a setting limits, there may be a tokenizer


def adapter_folders(settings: Settings) -> AdapterFolders:
    """What opens the folders of adapters, with the disk cache and the limits of the settings."""
    cache = DiskCache(
        (settings.adapter_cache_dir or DEFAULT_CACHE_DIR).expanduser(),
        max_bytes=(settings.adapter_cache_mb or DEFAULT_CACHE_MB) * 10**6,
    )
    return AdapterFolders(cache, max_bytes=memory_bytes(settings) + _COMPANION_BYTES, base=settings.weights_dir)


def memory_bytes(settings: Settings) -> int:
    """The limit of all loaded adapters together, in bytes."""
    return (settings.adapter_memory_mb or DEFAULT_MEMORY_MB) * 10**6


class AdapterFolders:
    """Opens the folders of adapters, wherever they are.

    Args:
        cache: the disk cache for remote adapters.
        max_bytes: limit of the files of one remote adapter.
        base: the base's folder, which no message shows.
    """

    def __init__(self, cache: DiskCache, *, max_bytes: int, base: Path) -> None:
        self._cache = cache
        self._base = base
        self._stopped = threading.Event()
        self._limits = FetchLimits(max_bytes, FETCH_SECONDS, self._stopped.is_set)

    @contextmanager
    def open(self, entry: AdapterEntry) -> Iterator[Path]:
        """The adapter's folder, which stays inside the block; errors inside it are shown as this adapter's.

        Raises:
            AdapterError: the adapter cannot be had or used.
            EngineBusyError: there is no room for it now.
        """
        shown = [(self._base, "the base")]
        if entry.draft_model is not None:
            shown.append((entry.draft_model.parent, "the list's folder"))
        try:
            with self._held(entry) as folder:
                shown.insert(0, (folder, "it"))
                yield folder
        except Exception as error:  # any library may raise it that reads a damaged file
            logger.warning("adapter %r from %s cannot be loaded", entry.name, entry.source, exc_info=True)
            kind = EngineBusyError if isinstance(error, EngineBusyError) else AdapterError
            raise kind(f"adapter {entry.name!r} cannot be loaded: {_reason(error, shown)}") from error

    @contextmanager
    def _held(self, entry: AdapterEntry) -> Iterator[Path]:
        source = entry.source
        if isinstance(source, Path):
            yield source
            return
        assert source is not None and entry.digest is not None, "a remote adapter, not a combination"
        with self._cache.lease(entry.digest, lambda folder: fetch_adapter(source, folder, self._limits)) as folder:
            yield folder

    def close(self) -> None:
        """Stop downloads."""
        self._stopped.set()


def _reason(error: Exception, shown: list[tuple[Path, str]]) -> str:
    """An error's message without paths, or none if nobody can say what is in it."""
    if not isinstance(error, ServingError):
        return f"{type(error).__name__}; the server's log says more"
    text = str(error)
    for path, name in shown:
        text = text.replace(f"{path}/", "").replace(str(path), name)
    return text
