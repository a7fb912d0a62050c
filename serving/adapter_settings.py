"""What the settings of adapters mean, for every engine that loads some."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from serving.adapters.adapter_folders import AdapterFolders
from serving.adapters.disk_cache import DiskCache
from serving.adapters.known_adapters import KnownAdapters, parse_prefixes
from serving.adapters.registry import read_registry
from serving.config import Settings
from serving.errors import SettingError

DEFAULT_MEMORY_MB: Final = 1024
DEFAULT_CACHE_MB: Final = 10_240
DEFAULT_CACHE_DIR: Final = Path("~/.cache/adapters")
_OF_ADAPTERS: Final = ("adapter_memory_mb", "adapter_cache_dir", "adapter_cache_mb", "adapter_golden", "max_loras")


def known_adapters(settings: Settings) -> KnownAdapters:
    """The adapters that requests may name.

    Raises:
        AdapterError: the list or ADAPTER_SOURCES is wrong.
        SettingError: a setting of adapters would be ignored, because there can be none.
    """
    if settings.adapters is None and settings.adapter_sources is None:
        for name in _OF_ADAPTERS:
            if settings.is_set(name):
                raise SettingError(
                    f"{name.upper()}={getattr(settings, name)} would be ignored without ADAPTERS; unset it, or set both"
                )
    listed = {} if settings.adapters is None else read_registry(settings.adapters)
    return KnownAdapters(listed, parse_prefixes(settings.adapter_sources or ""))


def adapter_folders(settings: Settings) -> AdapterFolders:
    """Opens them."""
    cache = DiskCache(
        (settings.adapter_cache_dir or DEFAULT_CACHE_DIR).expanduser(),
        max_bytes=(settings.adapter_cache_mb or DEFAULT_CACHE_MB) * 10**6,
    )
    # Beside the tensors, which the setting limits, there may be a tokenizer.
    return AdapterFolders(cache, max_bytes=memory_bytes(settings) + (64 << 20), base=settings.weights_dir)


def memory_bytes(settings: Settings) -> int:
    """Limit of all loaded adapters together."""
    return (settings.adapter_memory_mb or DEFAULT_MEMORY_MB) * 10**6
