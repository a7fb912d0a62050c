"""Write weights.lock for the weights that cog.yaml names.

Image layers cannot be computed outside Cog, because their compression depends on Go. They are left out, and
`envelopeFormat` is empty, which makes Cog compute them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from pipeline.locking.source_files import SourceConfig, read_source
from pipeline.weights.atomic import write_text
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from serving.weights import LockedWeights, WeightsLock, lock_of, set_digest

ENVELOPE_NOT_COMPUTED = ""


def write_lock(cog_yaml: Path, lock: Path, root: Path | None = None) -> None:
    """Write the lock of all weights of cog.yaml, unless it is up to date.

    Args:
        cog_yaml: the file with the `weights:` stanza.
        lock: the file to write.
        root: what folders are relative to; by default where cog.yaml is.

    Raises:
        CheckpointError: see `make_lock`.
        WeightsError: see `make_lock`.
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
    sources = tuple(one.source for one in read)
    files = tuple(sorted((file for one in read for file in one.files), key=lambda file: file.path))
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
