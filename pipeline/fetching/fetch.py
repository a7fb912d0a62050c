"""Fetches a checkpoint or an adapter from any source, checks it, and records where it came from."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.fetching.folder import copy_folder
from pipeline.fetching.https import fetch_https
from pipeline.fetching.hub import fetch_hub
from pipeline.fetching.source import FolderSource, HttpsSource, HubSource, Source
from pipeline.weights.atomic import write_json
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError

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


def fetch(source: Source, folder: Path) -> Fetched:
    """Fetch the needed files into `folder`. Complete files are kept, interrupted downloads continue.

    If another process fetches into the same folder, this waits for it.

    Raises:
        CheckpointError: the source, the connection or the disk is at fault; the message says what to do.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        folder.mkdir(exist_ok=True)
        match source:
            case HubSource():
                listing = fetch_hub(source, folder)
                pinned, names = f"hf://{listing.repo}@{listing.commit}", [file.name for file in listing.files]
            case HttpsSource():
                pinned, names = str(source), fetch_https(source, folder)
            case FolderSource():
                if source.path.resolve() == folder.resolve():
                    raise CheckpointError(f"{folder} is the source itself; choose another folder")
                pinned, names = str(source), copy_folder(source.path, folder)
        fetched = Fetched(pinned, {name: sha256(folder / name) for name in sorted(names)})
        write_json(folder / RECORD, asdict(fetched))
    return fetched


def alone(folder: Path) -> AbstractContextManager[None]:
    """The folder's lock, for which other processes that fetch into the folder wait."""
    path = folder.with_name(f".{folder.name}.lock")
    return waiting_lock(path, f"Waiting for another process that fetches into {folder}")
