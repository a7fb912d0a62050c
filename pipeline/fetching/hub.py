"""Downloads repositories of the model hub with huggingface_hub, at one commit, and checks sizes and SHA-256."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from pipeline.fetching.retry import TRY_LATER, RetryableError, retry_after, with_retries
from pipeline.fetching.source import HubSource
from pipeline.fetching.wanted import check_space, needed_files, size_limit
from pipeline.weights.console import say
from pipeline.weights.digest import git_digest, sha256
from pipeline.weights.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Args:
        name: its path there.
        size: in bytes.
        sha256: what the hub states for large files; None for small ones.
        blob: Git's id of a small file; None for large ones.
    """

    name: str
    size: int
    sha256: str | None
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class HubListing:
    """The needed files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


def list_hub(source: HubSource, select: Callable[[Iterable[str]], list[str]] = needed_files) -> HubListing:
    """List the selected files, at the commit to which the revision points now.

    Args:
        source: the repository.
        select: which of all names; by default those that merging, quantizing and serving read.

    Raises:
        CheckpointError: the repository cannot be read; the message says why and what to do.
    """

    def ask() -> HubListing:
        with _explained(source):
            info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
        siblings = {file.rfilename: file for file in info.siblings or ()}
        files = tuple(_hub_file(siblings[name]) for name in select(siblings))
        if info.sha is None:
            raise CheckpointError(f"{source}: the hub names no commit; try another revision")
        return HubListing(source.repo, info.sha, files)

    return with_retries(str(source), ask)


def find_hub_file(source: HubSource, name: str, *, timeout: float) -> tuple[HubListing, HubFile]:
    """One file of a repository, of whatever kind. The hub is asked once, so that no hub is noticed soon.

    Args:
        source: the repository.
        name: of the file.
        timeout: seconds until the hub must have answered.

    Raises:
        CheckpointError: the hub cannot be reached, or has no such repository or file.
    """
    try:
        with _explained(source):
            info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=timeout)
    except RetryableError as problem:
        raise CheckpointError(f"{source}: {problem}") from problem
    files = [_hub_file(file) for file in info.siblings or () if file.rfilename == name]
    if not files or info.sha is None:
        raise CheckpointError(f"{source} has no {name}")
    return HubListing(source.repo, info.sha, tuple(files)), files[0]


def _hub_file(file: RepoSibling) -> HubFile:
    if file.size is None:
        raise CheckpointError(f"the hub does not state the size of {file.rfilename}; try again, or fetch it by hand")
    if file.lfs is None:
        return HubFile(file.rfilename, file.size, None, file.blob_id)
    return HubFile(file.rfilename, file.size, file.lfs.sha256)


def fetch_hub(source: HubSource, folder: Path) -> HubListing:
    """Download into `folder`. Correct files are kept, interrupted downloads continue.

    Raises:
        CheckpointError: the repository cannot be read, the disk is too small, or a file is damaged twice.
    """
    listing = list_hub(source)
    fetch_listed(listing, folder)
    return listing


def fetch_listed(listing: HubListing, folder: Path) -> None:
    """Download the files of a listing into `folder`, as `fetch_hub` does.

    Raises:
        CheckpointError: as `fetch_hub`.
    """
    check_space(folder, {file.name: file.size for file in listing.files})
    for file in listing.files:
        fetch_hub_file(listing, file, folder)
    shutil.rmtree(folder / ".cache" / "huggingface", ignore_errors=True)  # of huggingface_hub, for broken downloads
    with suppress(OSError):
        (folder / ".cache").rmdir()


def fetch_hub_file(listing: HubListing, file: HubFile, folder: Path) -> None:
    """Download one file into `folder`, unless it is there and right; continue where a download was stopped.

    Raises:
        CheckpointError: the file cannot be had, or stays damaged.
    """
    path = folder / file.name
    for attempt in range(2):
        if path.is_file() and _is_right(path, file):
            return
        path.unlink(missing_ok=True)
        say(f"Fetching {file.name} ({file.size:,} bytes)" + (" again: it was damaged" if attempt else ""))

        def download(force: bool = attempt > 0) -> None:
            with _explained(HubSource(listing.repo, listing.commit)):
                hf_hub_download(
                    listing.repo, file.name, revision=listing.commit, local_dir=folder, force_download=force
                )

        with size_limit(file.size):
            with_retries(file.name, download)
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


@contextmanager
def _explained(source: HubSource) -> Iterator[None]:
    """Convert the hub's errors. The library's messages are not passed on, because they contain ids and headers."""
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{source} is gated: ask for access on its page, then log in with `hf auth login` (or set HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{source}: no such revision; give a branch, a tag or a commit") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{source}: no such repository, or it is private: check the name, or log in with `hf auth login`"
        ) from error
    except HFValidationError as error:
        raise CheckpointError(f"{source}: not a repository's name") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in TRY_LATER:
            raise RetryableError(
                f"the hub answered {status}", retry_after(error.response.headers.get("retry-after"))
            ) from error
        if status in (401, 403):
            raise CheckpointError(f"{source}: the hub refuses this login ({status}); run `hf auth login`") from error
        raise CheckpointError(f"{source}: the hub answered {status}") from error
    except OfflineModeIsEnabled as error:
        raise CheckpointError(f"{source}: HF_HUB_OFFLINE keeps the hub from being asked; unset it") from error
    except (LocalEntryNotFoundError, HTTPError, ConnectionError, TimeoutError) as error:
        raise RetryableError("the connection to the hub failed") from error
    except OSError as error:  # huggingface_hub raises a bare OSError for a download of the wrong size
        if "Consistency check failed" not in str(error):
            raise
        raise RetryableError("a download was cut short") from error
