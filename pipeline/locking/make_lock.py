"""Writes weights.lock for the weights that cog.yaml names, or the lock of one source into a file of its own.

Image layers cannot be computed outside Cog, because their compression depends on Go. They are left out, and
`envelopeFormat` is empty, which makes Cog compute them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pipeline.fetching.https import file_sizes
from pipeline.fetching.source import FolderSource, HttpsSource, HubSource, parse_source
from pipeline.fetching.wanted import needed_files
from pipeline.fetching.watch import CONSOLE
from pipeline.locking.source_files import SourceConfig, read_source
from pipeline.weights.atomic import write_text
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import list_hub
from serving.weights import LockedSource, LockedWeights, WeightsLock, could_run_code, lock_files, lock_of, set_digest

ENVELOPE_NOT_COMPUTED = ""


def write_lock(cog_yaml: Path, lock: Path, root: Path | None = None) -> None:
    """Write the lock of all weights of cog.yaml, unless it is up to date.

    Args:
        cog_yaml: the file with the `weights:` stanza.
        root: what folders are relative to; by default where cog.yaml is.

    Raises:
        CheckpointError: cog.yaml names no weights, or a source that cannot be read or is not supported.
        WeightsError: a file could run code, or is damaged.
    """
    previous = WeightsLock.load(lock) if lock.exists() else None
    current = make_lock(cog_yaml, previous, datetime.now(UTC), root)
    if current == previous:
        say(f"{lock.name} is up to date")
        return
    write_text(lock, current.text())
    for entry in current.weights:
        say(f"Locked {entry.name}: {len(entry.files)} files, {entry.size:,} bytes, {entry.set_digest}")


def make_lock(cog_yaml: Path, previous: WeightsLock | None, now: datetime, root: Path | None = None) -> WeightsLock:
    """The lock of all weights of cog.yaml; `previous` itself if nothing has changed.

    Raises:
        CheckpointError: cog.yaml names no weights, or a source that cannot be read or is not supported.
        WeightsError: a file could run code, or is damaged.
    """
    stanzas = _stanzas(cog_yaml)
    locked = {entry.name: entry for entry in previous.weights} if previous else {}
    entries = tuple(
        lock_sources(
            name := str(stanza["name"]),
            str(stanza["target"]),
            _sources(name, stanza["source"]),
            root or cog_yaml.parent,
            locked.get(name),
            now,
        )
        for stanza in stanzas
    )
    if previous is not None and entries == previous.weights:
        return previous
    return WeightsLock(version=1, envelope_format=ENVELOPE_NOT_COMPUTED, weights=entries)


def _stanzas(cog_yaml: Path) -> list[dict[str, Any]]:
    try:
        config = yaml.safe_load(cog_yaml.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointError(f"{cog_yaml} cannot be read: {error}") from error
    stanzas = config.get("weights") if isinstance(config, dict) else None
    if not stanzas:
        raise CheckpointError(f"{cog_yaml} has no weights: stanza; add one with name, target and source")
    for stanza in stanzas if isinstance(stanzas, list) else [stanzas]:
        if not isinstance(stanza, dict) or stanza.keys() != {"name", "target", "source"}:
            raise CheckpointError(f"{cog_yaml}: each of the weights has name, target and source, and nothing else")
    return list(stanzas)


def lock_sources(
    name: str, target: str, configs: Sequence[SourceConfig], root: Path, before: LockedWeights | None, now: datetime
) -> LockedWeights:
    """One set of weights from its sources; `before` itself if nothing has changed.

    Raises:
        CheckpointError: a source cannot be read, or two have the same file.
        WeightsError: a file could run code or is damaged, or name or target is not one that Cog takes.
    """
    cache, kept = download_cache(root, name), root / "weights" / name
    read = [read_source(config, root, [kept, cache], cache) for config in configs]
    sources = tuple(source for source, _ in read)
    files = tuple(sorted((file for _, found in read for file in found), key=lambda file: file.path))
    _check_whole(name, [file.path for file in files])
    if before and (before.set_digest, before.target, before.sources) == (set_digest(files), target, sources):
        return before
    return lock_of(name, target, sources, now.strftime("%Y-%m-%dT%H:%M:%SZ"), files)


def download_cache(root: Path, name: str) -> Path:
    """Where files of a model are while they are fetched, so that its own folder is complete or absent."""
    return root / "weights" / ".cache" / "locked" / name


def _check_whole(name: str, paths: list[str]) -> None:
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise CheckpointError(f"weights {name!r}: {twice[0]} is in two sources; exclude it from one")
    if not any(path.endswith(".safetensors") for path in paths):
        raise CheckpointError(f"weights {name!r}: no source has a .safetensors file; nothing else is loaded")


def _sources(name: str, value: Any) -> list[SourceConfig]:
    """One source or a list of them."""
    configs = []
    for source in value if isinstance(value, list) else [value]:
        texts = isinstance(source, dict) and all(
            isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns)
            for key, patterns in source.items()
            if key != "uri"
        )
        if not texts or "uri" not in source or not source.keys() <= {"uri", "include", "exclude"}:
            raise CheckpointError(f"weights {name!r}: a source has a uri, and lists of patterns as include and exclude")
        configs.append(
            SourceConfig(str(source["uri"]), tuple(source.get("include", ())), tuple(source.get("exclude", ())))
        )
    return configs


def lock_source(text: str, root: Path, name: str | None, lock: Path | None) -> Path:
    """Write the lock of one source, unless it is up to date; returns its path.

    Of a repository or an address it takes the files that serving needs, by name.

    Args:
        text: a folder, `hf://ORG/NAME@REVISION` or `https://…/`.
        name: the name of the weights; None takes the source's last part.
        lock: the file; None is `weights/NAME.lock`.

    Raises:
        CheckpointError: the source cannot be read, or the lock has other weights.
        WeightsError: a file could run code or is damaged, or the name is not one that Cog takes.
    """
    source = parse_source(text)
    name = name or _name(source)
    path = lock or root / "weights" / f"{name}.lock"
    previous = WeightsLock.load(path) if path.exists() else None
    before = {entry.name: entry for entry in previous.weights} if previous else {}
    if before.keys() - {name}:
        raise CheckpointError(f"{path} is the lock of {', '.join(before)}, not of {name}; give --lock another file")
    entry = _entry(source, root, name, before.get(name))
    if previous is not None and entry == before.get(name):
        say(f"{path.name} is up to date")
        return path
    write_text(path, WeightsLock(version=1, envelope_format=ENVELOPE_NOT_COMPUTED, weights=(entry,)).text())
    say(f"Locked {name} in {path}: {len(entry.files)} files, {entry.size:,} bytes, {entry.set_digest}")
    return path


def _name(source: FolderSource | HubSource | HttpsSource) -> str:
    last = source.path.resolve().name if isinstance(source, FolderSource) else str(source).rstrip("/").split("/")[-1]
    return re.sub(r"[^a-z0-9._-]+", "-", last.partition("@")[0].lower())


def _entry(
    source: FolderSource | HubSource | HttpsSource, root: Path, name: str, before: LockedWeights | None
) -> LockedWeights:
    now = datetime.now(UTC)
    target = f"/src/weights/{name}"
    match source:
        case FolderSource():
            files = lock_files(source.path)
            sources = (LockedSource(uri=f"file://./weights/{name}", fingerprint=set_digest(files)),)
            if before and (before.set_digest, before.sources) == (set_digest(files), sources):
                return before
            return lock_of(name, target, sources, now.strftime("%Y-%m-%dT%H:%M:%SZ"), files)
        case HubSource():
            names = tuple(
                file.name for file in list_hub(source, needed_files, CONSOLE).files if not could_run_code(file.name)
            )
            configs = [SourceConfig(str(source), include=names)]
        case HttpsSource():
            names = tuple(file for file in file_sizes(source) if not could_run_code(file))
            configs = [SourceConfig(source.url + file) for file in names]
    return lock_sources(name, target, configs, root, before, now)
