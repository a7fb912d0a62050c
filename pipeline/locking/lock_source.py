"""Lock one folder, hub repository or https address into a file of its own, beside what cog.yaml names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from pipeline.fetching.https import file_sizes
from pipeline.fetching.source import FolderSource, HttpsSource, HubSource, parse_source
from pipeline.fetching.wanted import needed_files
from pipeline.fetching.watch import CONSOLE
from pipeline.locking.make_lock import ENVELOPE_NOT_COMPUTED, lock_sources
from pipeline.locking.source_files import SourceConfig
from pipeline.weights.atomic import write_text
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import list_hub
from serving.weights import LockedSource, LockedWeights, WeightsLock, could_run_code, lock_files, lock_of, set_digest


def lock_source(text: str, root: Path, name: str | None, lock: Path | None) -> Path:
    """Write the lock of one source, unless it is up to date; returns its path.

    Of a repository or an address it takes the files that serving needs, by name.

    Args:
        text: a folder, `hf://ORG/NAME@REVISION` or `https://…/`.
        root: of this repository.
        name: of the weights; None takes the source's last part.
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
