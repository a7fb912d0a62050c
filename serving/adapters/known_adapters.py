"""The adapters that requests may name: those of the list, and sources that the operator allows.

known = known_adapters(settings)
known["hf://my-team/invoices@main#sha256:…"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from serving.adapters.registry import DIGEST, AdapterEntry, parse_pinned, read_registry
from serving.config import Settings
from serving.errors import AdapterError, SettingError

_MAX_LENGTH: Final = 500  # characters of a source in a request
# Settings that have a meaning only if there can be adapters.
_FURTHER_SETTINGS: Final = ("adapter_memory_mb", "adapter_cache_dir", "adapter_cache_mb", "adapter_golden", "max_loras")


def known_adapters(settings: Settings) -> KnownAdapters:
    """The adapters that requests may name, by the settings ADAPTERS and ADAPTER_SOURCES.

    Raises:
        AdapterError: the list or ADAPTER_SOURCES is wrong.
        SettingError: a setting of adapters would be ignored, because there can be none.
    """
    if settings.adapters is None and settings.adapter_sources is None:
        for name in _FURTHER_SETTINGS:
            if settings.is_set(name):
                raise SettingError(
                    f"{name.upper()}={getattr(settings, name)} would be ignored without ADAPTERS; unset it, or set both"
                )
    listed = {} if settings.adapters is None else read_registry(settings.adapters)
    return KnownAdapters(listed, parse_prefixes(settings.adapter_sources or ""))


class KnownAdapters(Mapping[str, AdapterEntry]):
    """Entries by name. Iteration gives the listed ones only.

    A source in a request ends with `#` and the digest of the adapter's files, so that its name says exactly what it is:
    caches of answers, keys and values can rely on it.

    Args:
        listed: the entries of adapters.yaml.
        prefixes: a source in a request must begin with one of these; without any, none is taken.
    """

    def __init__(self, listed: Mapping[str, AdapterEntry], prefixes: tuple[str, ...] = ()) -> None:
        self._listed = listed
        self._prefixes = prefixes

    def __getitem__(self, name: str) -> AdapterEntry:
        found = self._listed.get(name) or self._from_source(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def _from_source(self, name: str) -> AdapterEntry | None:
        text, _, digest = name.partition("#")
        if len(name) > _MAX_LENGTH or not DIGEST.fullmatch(digest) or not self._is_allowed(text):
            return None
        try:
            return AdapterEntry(name, parse_pinned(text), digest)
        except ValueError:
            return None

    def _is_allowed(self, text: str) -> bool:
        # Neither may lead out of a prefix that is a folder.
        is_plain = text.isascii() and text.isprintable() and not {"%", "\\", " "} & set(text) and ".." not in text
        return is_plain and any(text.startswith(prefix) for prefix in self._prefixes)


def parse_prefixes(text: str) -> tuple[str, ...]:
    """Read ADAPTER_SOURCES: prefixes with commas between.

    Raises:
        AdapterError: one does not end where a name ends, so that it would allow names that only begin alike.
    """
    prefixes = tuple(part.strip() for part in text.split(",") if part.strip())
    for prefix in prefixes:
        is_hub = prefix.startswith("hf://")
        if not (is_hub or prefix.startswith("https://")) or not prefix.endswith(("/", "@") if is_hub else "/"):
            raise AdapterError(
                f"ADAPTER_SOURCES: {prefix!r} must be hf://ORG/, hf://ORG/NAME@ or https://HOST/…/, with the last "
                "character"
            )
        if prefix in ("hf://", "https://"):
            raise AdapterError(f"ADAPTER_SOURCES: {prefix!r} would allow everything; name an organisation or a host")
    return prefixes
