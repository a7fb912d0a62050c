"""Lists repositories of the model hub with huggingface_hub, at one commit, and explains the hub's errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from httpx2 import HTTPError
from huggingface_hub import HfApi
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

from serving.fetching.remote_source import HubSource
from serving.fetching.retry import TRY_LATER, RetryableError, Watch, retry_after, with_retries

_REASONS: Final[dict[type[Exception], str]] = {  # the first that fits
    GatedRepoError: "it is gated: ask for access on its page, then log in with `hf auth login` (or set HF_TOKEN)",
    RevisionNotFoundError: "no such revision; give a branch, a tag or a commit",
    RepositoryNotFoundError: "no such repository, or it is private: check the name, or log in with `hf auth login`",
    HFValidationError: "not a repository's name",
    OfflineModeIsEnabled: "HF_HUB_OFFLINE=1 keeps the hub from being asked; whoever runs this sets HF_HUB_OFFLINE=0",
}


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Args:
        name: its path there.
        size: number of bytes.
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


def list_hub(source: HubSource, select: Callable[[Iterable[str]], list[str]], watch: Watch) -> HubListing:
    """List the selected files, at the commit to which the revision points now.

    Raises:
        watch.error: the repository cannot be read; the message says why and what to do.
    """

    def ask() -> HubListing:
        with explained(source, watch):
            info = HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=watch.timeout)
        siblings = {file.rfilename: file for file in info.siblings or ()}
        chosen = [siblings[name] for name in select(siblings)]
        if info.sha is None or any(file.size is None for file in chosen):
            raise watch.error(str(source), "the hub names no commit or not each file's size; try another revision")
        return HubListing(source.repo, info.sha, tuple(map(_hub_file, chosen)))

    return with_retries(str(source), ask, watch)


def _hub_file(file: RepoSibling) -> HubFile:
    assert file.size is not None
    if file.lfs is None:
        return HubFile(file.rfilename, file.size, None, file.blob_id)
    return HubFile(file.rfilename, file.size, file.lfs.sha256)


@contextmanager
def explained(source: HubSource, watch: Watch) -> Iterator[None]:
    """Convert the hub's errors. The library's messages are not passed on, because they contain ids and headers."""
    try:
        yield
    except tuple(_REASONS) as error:
        reason = next(reason for kind, reason in _REASONS.items() if isinstance(error, kind))
        raise watch.error(str(source), reason) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in TRY_LATER:
            after = retry_after(error.response.headers.get("retry-after"))
            raise RetryableError(f"the hub answered {status}", after) from error
        login = "; run `hf auth login` with one that may read it" if status in (401, 403) else ""
        raise watch.error(str(source), f"the hub answered {status}{login}") from error
    except (LocalEntryNotFoundError, HTTPError, ConnectionError, TimeoutError) as error:
        raise RetryableError("the connection to the hub failed") from error
    except json.JSONDecodeError as error:  # the page of a proxy, or of a hub that is down
        raise RetryableError("the hub's answer is not JSON") from error
    except OSError as error:  # huggingface_hub raises a bare OSError for a download of the wrong size
        if "Consistency check failed" not in str(error):
            raise
        raise RetryableError("a download was cut short") from error
