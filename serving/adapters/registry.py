"""The adapters that requests may name: those of the operator's list, and sources that the operator allows.

adapters.yaml is read strictly: an error names the line and the field.

adapters:
  - name: invoices
    source: adapters/invoices
  - name: both
    combine: {method: ties, of: {invoices: 0.7, letters: 0.3}, density: 0.5}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from serving.adapters.combination import Combination
from serving.config import Settings
from serving.errors import AdapterError, SettingError
from serving.fetching.remote_source import HubSource, RemoteSource, parse_remote

MAX_ADAPTERS: Final = 10_000
DEFAULT_MAX_RANK: Final = 128
_MAX_BYTES: Final = 4 * 2**20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# The fields of an adapter, with the type that YAML must give them.
_FIELDS: Final = {
    **{"name": "str", "source": "str", "digest": "str", "pinned": "bool", "max_rank": "int"},
    **{"task": "str", "draft_model": "str"},
}
_COMBINE: Final = ("method", "of", "density", "seed")
_MAX_LENGTH: Final = 500  # characters of a source in a request
# Settings that have a meaning only if there can be adapters.
_FURTHER_SETTINGS: Final = ("adapter_memory_mb", "adapter_cache_dir", "adapter_cache_mb", "adapter_golden", "max_loras")


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One adapter of the list.

    Args:
        name: what requests call it; never a path.
        source: the folder where PEFT wrote it, or where it is fetched from; None for a combination.
        digest: what its files must have, see `adapter_digest`; None, except for a remote one, accepts what is there.
        pinned: whether it is loaded at the start and stays in memory.
        max_rank: an adapter of a higher rank is refused.
        task: folder of its task file and chat template; None for those of the base.
        draft_model: file of the draft model that was trained for it, in place of draft.model in its folder.
        combination: which adapters of the list it is made of; None for one with a source.
    """

    name: str
    source: Path | RemoteSource | None
    digest: str | None = None
    pinned: bool = False
    max_rank: int = DEFAULT_MAX_RANK
    task: Path | None = None
    draft_model: Path | None = None
    combination: Combination | None = None


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


def read_registry(path: Path) -> dict[str, AdapterEntry]:
    """The adapters of a list by name, in its order.

    Raises:
        AdapterError: the file cannot be read, or something in it is wrong.
    """
    return {entry.name: entry for entry in _Reader(path).entries()}


def parse_pinned(text: str) -> RemoteSource:
    """Parse the remote source of an adapter, which names a revision if it is on the hub.

    Raises:
        ValueError: it is wrong; the message says what is right.
    """
    source = parse_remote(text)
    if isinstance(source, HubSource) and source.revision is None:
        raise ValueError(f"{text} names no revision; give hf://ORG/NAME@REVISION, best with a commit")
    return source


class _Reader:
    """Walks through the nodes of the file, which know their lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[AdapterEntry]:
        top = self._fields(self._parse(), "the file", ("adapters",))
        nodes = top.get("adapters")
        if not isinstance(nodes, yaml.SequenceNode) or not 0 < len(nodes.value) <= MAX_ADAPTERS:
            raise self._error(nodes, f"adapters must be a list of 1 to {MAX_ADAPTERS:,} adapters")
        found: dict[str, AdapterEntry] = {}
        for node in nodes.value:
            entry = self._entry(node)
            if entry.name in found:
                raise self._error(node, f"name: {entry.name!r} is listed twice; rename one")
            found[entry.name] = entry
        for node, entry in zip(nodes.value, found.values(), strict=True):
            for name in entry.combination.names if entry.combination else ():
                if name not in found or found[name].combination:
                    raise self._error(node, f"combine: {name!r} is no adapter of this list with a source of its own")
        return list(found.values())

    def _parse(self) -> yaml.Node | None:
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise AdapterError(f"{self._path} has over {_MAX_BYTES:,} bytes; list fewer adapters")
            node: yaml.Node | None = yaml.compose(self._path.read_text("utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise AdapterError(f"{self._path}: cannot be read: {error.strerror}; set ADAPTERS to the list") from error
        except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise AdapterError(f"{self._path} is not YAML: {error}") from error
        return node

    def _fields(self, node: yaml.Node | None, what: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be a mapping with the fields {', '.join(known)}")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.value not in known:
                raise self._error(key, f"{key.value!r} is not a field of {what}; it has {', '.join(known)}")
            if key.value in found:
                raise self._error(key, f"{key.value} is given twice")
            found[key.value] = value
        return found

    def _entry(self, node: yaml.Node) -> AdapterEntry:
        fields = self._fields(node, "an adapter", (*_FIELDS, "combine"))
        combine = fields.pop("combine", None)
        values = {name: self._scalar(name, value) for name, value in fields.items()}
        for name in ("name", "source") if combine is None else ("name",):
            if name not in values:
                raise self._error(node, f"{name} is missing")
        for name in ("source", "digest") if combine is not None else ():
            if name in values:
                raise self._error(fields[name], f"{name} is of the adapters that are combined; remove it here")
        self._check(fields, values)
        return AdapterEntry(
            name=values["name"],
            source=None if combine else self._source(fields["source"], values["source"]),
            digest=values.get("digest"),
            pinned=values.get("pinned") in ("true", "True", "TRUE"),
            max_rank=int(values.get("max_rank", DEFAULT_MAX_RANK)),
            task=self._existing(fields, values, "task"),
            draft_model=self._existing(fields, values, "draft_model"),
            combination=None if combine is None else self._combination(combine),
        )

    def _source(self, node: yaml.Node, text: str) -> Path | RemoteSource:
        if "://" not in text:
            return self._path.parent / text
        try:
            return parse_pinned(text)
        except ValueError as error:
            raise self._error(node, f"source: {error}") from error

    def _existing(self, fields: Mapping[str, yaml.Node], values: Mapping[str, str], name: str) -> Path | None:
        if name not in values:
            return None
        path = self._path.parent / values[name]
        if not path.exists():
            raise self._error(fields[name], f"{name}: {path} does not exist")
        return path

    def _combination(self, node: yaml.Node) -> Combination:
        fields = self._fields(node, "combine", _COMBINE)
        for name in ("method", "of"):
            if name not in fields:
                raise self._error(node, f"combine: {name} is missing")
        adapters = fields.pop("of")
        if not isinstance(adapters, yaml.MappingNode):
            raise self._error(adapters, "combine: of must be a mapping of adapters to their weights")
        values = {name: self._value(value) for name, value in fields.items()}
        names, weights = ([self._value(pair[side]) for pair in adapters.value] for side in (0, 1))
        try:
            return Combination(names=tuple(map(str, names)), weights=tuple(weights), **values)
        except AdapterError as error:
            raise self._error(node, f"combine: {error}") from error

    def _value(self, node: yaml.Node) -> Any:
        try:
            if isinstance(node, yaml.ScalarNode):
                return yaml.constructor.SafeConstructor().construct_document(node)
        except (yaml.YAMLError, ValueError, KeyError) as error:  # a tag is unknown or does not fit
            raise self._error(node, f"combine: {node.value!r} cannot be read: {error}") from error
        raise self._error(node, "combine: method, density, seed and weights are texts or numbers")

    def _scalar(self, name: str, node: yaml.Node) -> str:
        kind, wanted = node.tag.rpartition(":")[2], _FIELDS[name]
        simple = wanted == "str" or re.fullmatch(r"true|false|[0-9]{1,9}", str(node.value), re.IGNORECASE)
        if not isinstance(node, yaml.ScalarNode) or kind != wanted or not simple:
            example = {"str": "a text; put it in quotes", "bool": "true or false", "int": "a whole number"}[wanted]
            raise self._error(node, f"{name} must be {example}")
        return str(node.value)

    def _check(self, fields: Mapping[str, yaml.Node], values: Mapping[str, str]) -> None:
        name, source, digest = values["name"], values.get("source", ""), values.get("digest")
        if not _NAME.fullmatch(name):
            raise self._error(
                fields["name"], f"name: {name!r} must have 1 to 64 letters, digits, '.', '_' and '-', no path"
            )
        if "://" in source and digest is None:
            raise self._error(
                fields["source"], f"source: {source!r} is remote, so it needs a digest; scripts/fetch prints it"
            )
        if digest is not None and not DIGEST.fullmatch(digest):
            raise self._error(fields["digest"], f"digest: {digest!r} must be sha256: and 64 hexadecimal digits")
        if "max_rank" in values and int(values["max_rank"]) < 1:
            raise self._error(fields["max_rank"], f"max_rank: {values['max_rank']} must be 1 or more")

    def _error(self, node: yaml.Node | None, message: str) -> AdapterError:
        line = 1 if node is None else node.start_mark.line + 1
        return AdapterError(f"{self._path}, line {line}: {message}")
