"""Fetches the files that a lock names from the sources that it names; a folder of weights is complete or absent.

Nothing is asked for beyond the lock: no file that it does not have, and no more bytes than it gives for a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pipeline.fetching.fetch import alone
from pipeline.fetching.https import fetch_file
from pipeline.fetching.hub import fetch_listed
from pipeline.fetching.source import HubSource, parse_source
from pipeline.fetching.wanted import check_space
from pipeline.fetching.watch import CONSOLE
from pipeline.locking.source_files import file_name, local_path, select
from pipeline.weights.atomic import place_file, replace_folder
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import HubFile, list_hub
from serving.weights import LockedFile, LockedSource, LockedWeights, WeightsLock, list_files, verify

_COMMIT = re.compile(r"commit:([0-9a-f]{40,64})")
Wanted = dict[str, LockedFile]  # by path; what no source has given yet


def fetch_locked(lock: Path, root: Path, folder: Path | None = None) -> list[Path]:
    """Fetch all files of a lock, check them as an engine does at its start, and return their folders.

    Right files that are there already are kept, interrupted downloads continue. If another process fetches the same
    weights, this waits for it.

    Args:
        root: the repository, which local folders are relative to.
        folder: the folder for the weights of its name only; None takes `weights/NAME` of the repository for all.

    Raises:
        CheckpointError: a source, the connection or the disk is at fault, or a folder has other files.
        WeightsError: the lock cannot be read, lacks weights of that name, or a file could run code.
    """
    entries = WeightsLock.load(lock)
    if folder is not None:
        _fetch_entry(entries.entry_for(folder.name), lock, root, folder)
        return [folder]
    folders = [root / "weights" / entry.name for entry in entries.weights]
    for entry, target in zip(entries.weights, folders, strict=True):
        _fetch_entry(entry, lock, root, target)
    return folders


def _fetch_entry(entry: LockedWeights, lock: Path, root: Path, folder: Path) -> None:
    staging = folder.parent / ".cache" / "locked" / folder.name  # verify knows weights by their folder's name
    staging.parent.mkdir(parents=True, exist_ok=True)
    with alone(staging):
        if folder.exists() and _is_complete(entry, lock, folder):
            return
        staging.mkdir(exist_ok=True)
        wanted = _missing(entry, folder, staging)
        check_space(staging, {path: file.size for path, file in wanted.items()})
        for source in entry.sources:
            _take(source, wanted, root, folder, staging)
        if wanted:
            raise CheckpointError(
                f"no source of the lock has {', '.join(sorted(wanted))} of {entry.name}; build or copy the files into "
                f"{folder}, or lock a source that has them"
            )
        _remove_others(staging, {file.path for file in entry.files})
        verify(staging, lock)
        replace_folder(staging, folder)


def _is_complete(entry: LockedWeights, lock: Path, folder: Path) -> bool:
    """Whether the folder has all files and is right. Files that would be lost are refused."""
    files = {file.path: file for file in entry.files}
    others = [path for path in list_files(folder) if not (path in files and _is_right(folder / path, files[path]))]
    if others:
        listed = ", ".join(others[:3])
        raise CheckpointError(
            f"{folder} has files that the lock does not have, or has otherwise: {listed}; move the folder away"
        )
    if not all((folder / path).is_file() for path in files):
        return False
    verify(folder, lock)
    return True


def _missing(entry: LockedWeights, folder: Path, staging: Path) -> Wanted:
    """The files to fetch; right ones of `folder` are linked into `staging`."""
    missing: Wanted = {}
    for file in entry.files:
        path, there = staging / file.path, folder / file.path
        if path.is_file() and _is_right(path, file):
            continue
        if there.is_file():  # found right before
            place_file(there, path)
        else:
            missing[file.path] = file
    return missing


def _take(source: LockedSource, wanted: Wanted, root: Path, folder: Path, staging: Path) -> None:
    """Fetch what the source has of the wanted files, and remove it from them."""
    if source.uri.startswith("hf://"):
        names = _from_hub(source, wanted, staging)
    elif source.uri.startswith(("https://", "http://")):
        names = _from_https(source.uri, wanted, staging)
    else:
        names = _from_folder(root / local_path(source.uri), source, wanted, folder, staging)
    for name in names:
        file = wanted.pop(name)
        if not _is_right(staging / name, file):
            (staging / name).unlink()
            raise CheckpointError(
                f"{source.uri}: its {name} does not have the digest of the lock, {file.digest[:19]}…; if the source "
                "was changed on purpose, lock it again"
            )


def _from_hub(source: LockedSource, wanted: Wanted, staging: Path) -> list[str]:
    """Download what the repository has; nothing if the hub states another size or SHA-256 of a file than the lock."""
    commit, repository = _COMMIT.fullmatch(source.fingerprint), parse_source(source.uri)
    assert isinstance(repository, HubSource)
    if commit is None:
        raise CheckpointError(f"{source.uri}: the lock has no commit for it but {source.fingerprint!r}; lock it again")
    listing = list_hub(HubSource(repository.repo, commit[1]), lambda names: _chosen(source, wanted, names), CONSOLE)
    for file in listing.files:
        _check_stated(source, file, wanted[file.name])
    fetch_listed(listing, staging)
    return [file.name for file in listing.files]


def _check_stated(source: LockedSource, stated: HubFile, locked: LockedFile) -> None:
    if stated.size != locked.size or f"sha256:{stated.sha256}" not in ("sha256:None", locked.digest):
        raise CheckpointError(
            f"{source.uri}: the hub has {stated.size:,} bytes, sha256 {stated.sha256}, as {stated.name}, and the lock "
            f"{locked.size:,} bytes, {locked.digest}; do not use it"
        )


def _from_https(url: str, wanted: Wanted, staging: Path) -> list[str]:
    parse_source(url)  # refuses plain http to other machines
    name = file_name(url)
    if name not in wanted:
        return []
    fetch_file(url, staging / name, size=wanted[name].size, digest=wanted[name].digest.removeprefix("sha256:"))
    return [name]


def _from_folder(path: Path, source: LockedSource, wanted: Wanted, folder: Path, staging: Path) -> list[str]:
    if not path.is_dir() or path.resolve() == folder.resolve():
        return []
    sizes = list_files(path)
    names = [name for name in _chosen(source, wanted, sizes) if sizes[name] == wanted[name].size]
    for name in names:
        place_file(path / name, staging / name)
    return names


def _chosen(source: LockedSource, wanted: Wanted, names: Iterable[str]) -> list[str]:
    return select(set(names) & wanted.keys(), source.include, source.exclude)


def _is_right(path: Path, file: LockedFile) -> bool:
    return path.stat().st_size == file.size and f"sha256:{sha256(path)}" == file.digest


def _remove_others(staging: Path, paths: set[str]) -> None:
    """Remove what an earlier lock, or an interrupted download, left in our own folder."""
    for path in list_files(staging).keys() - paths:
        (staging / path).unlink()
