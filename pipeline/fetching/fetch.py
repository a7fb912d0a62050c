"""Fetches a checkpoint or an adapter from any source, checks it, and records where it came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.fetching.https import fetch_https
from pipeline.fetching.hub import fetch_listed
from pipeline.fetching.source import FolderSource, HttpsSource, HubSource, Source
from pipeline.fetching.wanted import check_space, needed_files
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.atomic import place_file, write_json
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import list_hub

RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a folder's files came from; written beside them as source.json.

    Args:
        source: the source as text that `fetch` accepts again; for a repository with the commit.
        files: SHA-256 by file name.
    """

    source: str
    files: dict[str, str]


def fetch(source: Source, folder: Path, digests: Mapping[str, str] = MappingProxyType({})) -> Fetched:
    """Fetch the needed files into `folder`. Whole files are kept, interrupted downloads continue.

    If another process fetches into the same folder, this waits for it.

    Args:
        digests: SHA-256 in hexadecimal that files must have, by name.

    Raises:
        CheckpointError: the source, the connection or the disk is at fault; the message says what to do.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        folder.mkdir(exist_ok=True)
        match source:
            case HubSource():
                listing = list_hub(source, needed_files, CONSOLE)
                fetch_listed(listing, folder)
                pinned, names = f"hf://{listing.repo}@{listing.commit}", [file.name for file in listing.files]
            case HttpsSource():
                pinned, names = str(source), fetch_https(source, folder, digests)
            case FolderSource():
                if source.path.resolve() == folder.resolve():
                    raise CheckpointError(f"{folder} is the source itself; choose another folder")
                pinned, names = str(source), copy_folder(source.path, folder)
        fetched = Fetched(pinned, {name: sha256(folder / name) for name in sorted(names)})
        for name, digest in digests.items():
            if fetched.files.get(name) != digest:
                found = f"has the SHA-256 {fetched.files[name]}" if name in fetched.files else "is not there"
                raise CheckpointError(f"{pinned}: {name} {found}, not {digest}; do not use it, or correct the digest")
        write_json(folder / RECORD, asdict(fetched))
    return fetched


def parse_digests(texts: Iterable[str]) -> dict[str, str]:
    """The SHA-256 in hexadecimal by file name that texts NAME=DIGEST give.

    Raises:
        CheckpointError: one is written otherwise.
    """
    digests = {}
    for text in texts:
        name, _, digest = text.rpartition("=")
        digest = digest.lower().removeprefix("sha256:")
        if not name or not re.fullmatch("[0-9a-f]{64}", digest):
            raise CheckpointError(f"--sha256 {text}: give NAME=DIGEST with 64 hexadecimal digits")
        digests[name] = digest
    return digests


def alone(folder: Path) -> AbstractContextManager[int]:
    """The folder's lock, for which other processes that fetch into the folder wait."""
    path = folder.with_name(f".{folder.name}.lock")
    return waiting_lock(path, f"Waiting for another process that fetches into {folder}")


def copy_folder(source: Path, folder: Path) -> list[str]:
    """Copy the needed files of `source` into `folder`, as hard links where the file system allows them.

    Raises:
        CheckpointError: `source` has no checkpoint, a link leads out of it (or out of its repository in the hub's
            cache), or the disk is too small.
    """
    root = _root(source)
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    real = {name: _resolved(source / name, root) for name in needed_files(names)}
    check_space(folder, {name: path.stat().st_size for name, path in real.items()})
    for name, path in real.items():
        target = folder / name
        if target.is_file() and _same(path, target):
            continue
        say(f"Copying {name} ({path.stat().st_size:,} bytes)")
        place_file(path, target)
    return list(real)


def _root(source: Path) -> Path:
    """The folder that links may lead into: `source`, or its repository in the hub's cache (models--ORG--NAME)."""
    real = source.resolve()
    for parent in (real, *real.parents):
        if parent.name.startswith("models--"):
            return parent
    return real


def _resolved(path: Path, root: Path) -> Path:
    real = path.resolve(strict=True)
    if not real.is_relative_to(root):
        raise CheckpointError(f"{path} is a link to {real}, outside of {root}; copy the file there yourself")
    return real


def _same(path: Path, target: Path) -> bool:
    first, second = path.stat(), target.stat()
    return os.path.samestat(first, second) or (
        first.st_size == second.st_size and first.st_mtime_ns <= second.st_mtime_ns
    )
