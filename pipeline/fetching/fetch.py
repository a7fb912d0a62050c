"""Fetches a checkpoint or an adapter from any source, checks it, and records where it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.fetching.folder import copy_folder
from pipeline.fetching.https import fetch_https
from pipeline.fetching.hub import fetch_listed
from pipeline.fetching.source import FolderSource, HttpsSource, HubSource, Source
from pipeline.fetching.wanted import needed_files
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.atomic import write_json
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
        source: where they are.
        folder: for the files.
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
    """SHA-256 in hexadecimal by file name, of texts NAME=DIGEST.

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


def alone(folder: Path) -> AbstractContextManager[None]:
    """The folder's lock, for which other processes that fetch into the folder wait."""
    path = folder.with_name(f".{folder.name}.lock")
    return waiting_lock(path, f"Waiting for another process that fetches into {folder}")
