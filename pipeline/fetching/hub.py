"""Downloads repositories of the model hub with huggingface_hub, at one commit, and checks sizes and SHA-256."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from huggingface_hub import hf_hub_download

from pipeline.fetching.source import HubSource
from pipeline.fetching.wanted import check_space, size_limit
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.console import say
from pipeline.weights.digest import git_digest, sha256
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import HubFile, HubListing, explained
from serving.fetching.retry import with_retries


def fetch_listed(listing: HubListing, folder: Path) -> None:
    """Download into `folder`. Correct files are kept, interrupted downloads continue.

    Raises:
        CheckpointError: a file cannot be had or is damaged twice, or the disk is too small.
    """
    check_space(folder, {file.name: file.size for file in listing.files})
    for file in listing.files:
        _fetch(listing, file, folder)
    shutil.rmtree(folder / ".cache" / "huggingface", ignore_errors=True)  # of huggingface_hub, for broken downloads
    with suppress(OSError):
        (folder / ".cache").rmdir()


def _fetch(listing: HubListing, file: HubFile, folder: Path) -> None:
    path = folder / file.name
    for attempt in range(2):
        if path.is_file() and _is_right(path, file):
            return
        path.unlink(missing_ok=True)
        say(f"Fetching {file.name} ({file.size:,} bytes)" + (" again: it was damaged" if attempt else ""))

        def download(force: bool = attempt > 0) -> None:
            with explained(HubSource(listing.repo, listing.commit), CONSOLE):
                hf_hub_download(
                    listing.repo, file.name, revision=listing.commit, local_dir=folder, force_download=force
                )

        with size_limit(file.size):
            with_retries(file.name, download, CONSOLE)
    if not _is_right(path, file):
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"{file.name} of {listing.repo} twice differed from the size or digest that the hub gives; a proxy may "
            "be changing it"
        )


def _is_right(path: Path, file: HubFile) -> bool:
    if path.stat().st_size != file.size:
        return False
    if file.sha256 is not None:
        return file.sha256 == sha256(path)
    return file.blob is None or file.blob == git_digest(path)
