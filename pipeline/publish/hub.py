"""Publishes a locked checkpoint on the model hub as one commit, with a card; called again, it sends what is missing.

Large files go into the hub's storage before the commit, and stay there if the push is stopped.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, HfApi, get_token, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from pipeline.fetching.source import HubSource, parse_source
from pipeline.fetching.watch import CONSOLE
from pipeline.publish.errors import PublishError
from pipeline.publish.model_card import is_ours, model_card, recorded
from pipeline.publish.safe_folder import safe_folder, secrets_in
from pipeline.weights.console import say
from pipeline.weights.digest import git_digest
from serving.fetching.retry import TRY_LATER, RetryableError, retry_after, with_retries

_T = TypeVar("_T")
_CARD = "README.md"
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def push_to_hub(
    target: str, folder: Path, *, public: bool, lock: Path | None, report: Path | None, dry_run: bool
) -> str:
    """Check, write the card, and upload; returns what was done, or with `dry_run` what would be.

    Args:
        target: `hf://ORG/NAME`.
        folder: the checkpoint. A README.md in it is its card; otherwise one is written.
        public: whether everybody may see a new repository.
        lock: the lock of the weights; None looks for it.
        report: what scripts/prepare measured; None looks beside the folder.

    Raises:
        PublishError: it cannot or may not be published so.
        CheckpointError: the hub cannot be reached.
        WeightsError: the folder does not match its lock.
    """
    source = parse_source(target)
    if not isinstance(source, HubSource) or source.revision is not None:
        raise PublishError(f"{target}: give hf://ORG/NAME, without a revision: a push goes to the main branch")
    say(f"Checking {folder}")
    weights = safe_folder(folder, lock)
    files = [
        _File(file.path, folder / file.path, file.size, file.digest.removeprefix("sha256:")) for file in weights.files
    ]
    with tempfile.TemporaryDirectory() as scratch:
        if _CARD not in {file.name for file in files}:
            card = model_card(source.repo, weights, *recorded(weights, report))
            files.append(_card_file(card, Path(scratch) / _CARD))
        upload = _Upload(source.repo, tuple(files), public=public)
        if dry_run:
            return _described(upload.plan(), Path(scratch) / _CARD)
        commit = upload.run()
    return f"hf://{source.repo}@{commit} has these {len(files)} files"


def _card_file(text: str, path: Path) -> _File:
    data = text.encode()
    found = secrets_in(data)
    if found:
        raise PublishError(f"the card would hold {found[0]}, which the record of these weights has; remove it there")
    path.write_bytes(data)
    return _File(_CARD, path, len(data), hashlib.sha256(data).hexdigest())


def _described(plan: _Plan, card: Path) -> str:
    kind = "private" if plan.private else "public"
    lines = [f"create hf://{plan.repo}, {kind}" if plan.head is None else f"hf://{plan.repo} is there, {kind}"]
    if not plan.is_known:
        lines.append("without a login the hub was not asked what is there already")
    lines += [f"send  {file.name}  {file.size:,} bytes  sha256:{file.sha256}" for file in plan.send]
    lines += [f"there {name}, the same" for name in plan.there]
    lines += [f"keep  {name} of the repository" for name in plan.kept]
    lines.append(f"{len(plan.send)} files, {sum(file.size for file in plan.send):,} bytes to send; nothing was changed")
    if card.is_file():
        lines += ["", "The card:", "", card.read_text("utf-8")]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _File:
    """A file to publish, with its name in the repository, its path here, its size in bytes and its SHA-256 in hex."""

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a push would do.

    Args:
        repo: `organisation/name`.
        private: whether the repository is private, or would be.
        head: the commit that it builds on; None if the repository is not there yet.
        send: files to send, smallest first.
        there: names of files that are there with the same digest.
        kept: names of files of the repository that are left as they are.
        is_known: whether the hub was asked; without a login it is not.
    """

    repo: str
    private: bool
    head: str | None
    send: tuple[_File, ...]
    there: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    is_known: bool = True


class _Upload:
    """Brings files to one repository.

    Args:
        repo: `organisation/name`.
        files: all files that the repository should have. A card that people have edited there is left as it is.
    """

    def __init__(self, repo: str, files: tuple[_File, ...], *, public: bool) -> None:
        self._repo, self._files, self._public = repo, files, public
        self._api = HfApi()

    def plan(self) -> _Plan:
        """Compare with what is there. Without a login, nothing is known to be there.

        Raises:
            PublishError: the repository may not be changed so.
            CheckpointError: the hub cannot be asked.
        """
        if get_token() is None:
            return _Plan(self._repo, not self._public, None, self._in_order(self._files), is_known=False)
        return self._retried(self._compare)

    def run(self) -> str:
        """Create the repository if need be, send what is missing, commit, and check; returns the commit.

        Raises:
            PublishError: the hub refuses it; the message says why.
            CheckpointError: the hub cannot be reached for long. A later call continues.
        """
        if get_token() is None:
            raise PublishError("you are not logged in to the model hub: run `hf auth login`, or set HF_TOKEN")
        return self._retried(self._attempt)

    def _retried(self, action: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            with _explained(self._repo):
                return action()

        return with_retries(f"hf://{self._repo}", attempt, CONSOLE)

    def _attempt(self) -> str:
        plan = self._compare()
        if plan.head is None:
            self._api.create_repo(self._repo, private=not self._public, exist_ok=True)
            say(f"Created the {'public' if self._public else 'private'} repository {self._repo}")
            plan = self._compare()
        if not plan.send and plan.head is not None:
            return plan.head
        for file in plan.send:
            say(f"Sending {file.name} ({file.size:,} bytes)")
        self._api.create_commit(
            self._repo,
            [CommitOperationAdd(file.name, file.path) for file in plan.send],
            commit_message=f"Push {len(plan.send)} files",
            parent_commit=plan.head,
            num_threads=1,  # one large file after another: a push that is stopped has lost one of them at most
        )
        after = self._compare()
        if after.send or after.head is None:
            names = ", ".join(file.name for file in after.send)
            raise PublishError(f"after the commit the hub does not have {names} as sent; push again")
        return after.head

    def _compare(self) -> _Plan:
        try:
            info = self._api.model_info(self._repo, files_metadata=True)
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404:  # 401: a token that the hub does not take
                raise
            return _Plan(self._repo, not self._public, None, self._in_order(self._files))
        remote = {file.rfilename: file for file in info.siblings or ()}
        self._check(info, remote)
        send = [file for file in self._files if not _is_same(file, remote.get(file.name))]
        kept = [name for name in remote if name not in {file.name for file in self._files}]
        if _CARD in remote and any(file.name == _CARD for file in send) and not is_ours(self._remote_card(info)):
            send = [file for file in send if file.name != _CARD]
            kept.append(_CARD)
        there = [file.name for file in self._files if file not in send and file.name not in kept]
        return _Plan(self._repo, bool(info.private), info.sha, self._in_order(tuple(send)), tuple(there), tuple(kept))

    def _check(self, info: ModelInfo, remote: dict[str, RepoSibling]) -> None:
        if self._public and info.private:
            raise PublishError(
                f"hf://{self._repo} is there already and private, so --public changes nothing; leave --public out, or "
                "make it public in its settings first"
            )
        if not self._public and not info.private:
            raise PublishError(f"hf://{self._repo} is there already and public: give --public if you mean that")
        ours = {file.name for file in self._files}
        others = [name for name in remote if name.endswith(_WEIGHTS) and "/" not in name and name not in ours]
        if others:
            raise PublishError(
                f"hf://{self._repo} has other weights: {', '.join(others)}. A loader would mix them with these: delete "
                "them there first, or push to another repository"
            )

    def _remote_card(self, info: ModelInfo) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = hf_hub_download(self._repo, _CARD, revision=info.sha, local_dir=folder)
            return Path(path).read_text("utf-8", errors="replace")

    @staticmethod
    def _in_order(files: tuple[_File, ...]) -> tuple[_File, ...]:
        return tuple(sorted(files, key=lambda file: (file.size, file.name)))


def _is_same(file: _File, remote: RepoSibling | None) -> bool:
    """Whether the hub has the file: by SHA-256 for large files, by git's own digest for those in git."""
    if remote is None:
        return False
    if remote.lfs is not None:
        return bool(remote.lfs.sha256 == file.sha256)
    return remote.size == file.size and remote.blob_id == git_digest(file.path)


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Raise what the hub says as `PublishError` or `RetryableError`.

    The library's own messages are not passed on: they hold request ids and signed addresses.
    """
    try:
        yield
    except HFValidationError as error:
        raise PublishError(f"hf://{repo}: not a repository's name on the hub") from error
    except HfHubHTTPError as error:
        raise _refusal(repo, error.response.status_code, error.response.headers.get("retry-after")) from error
    except OfflineModeIsEnabled as error:
        raise PublishError("HF_HUB_OFFLINE keeps the hub from being reached; unset it to push") from error
    except HTTPError as error:
        raise RetryableError("the connection to the hub failed") from error
    except (ConnectionError, TimeoutError) as error:  # hf-xet's; a status is only in its text
        raise _broken_xet(repo, error) from error
    except RuntimeError as error:  # the uploads of large files wrap what happened
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise _refusal(repo, cause.response.status_code, cause.response.headers.get("retry-after")) from error
        raise RetryableError(f"an upload broke ({type(cause or error).__name__})") from error
    except json.JSONDecodeError as error:  # the page of a proxy, or of a hub that is down
        raise RetryableError("the hub's answer is not JSON") from error
    except ValueError as error:  # a card that the hub does not take, or an answer that is none
        raise PublishError(f"hf://{repo}: the hub refuses the files: {str(error)[:300]}") from error


def _broken_xet(repo: str, error: OSError) -> Exception:
    status = re.search(r"status client error \((\d{3})", str(error))
    if status is None:
        return RetryableError("the upload through Xet broke")
    if status[1] == "404":
        return PublishError("this hub stores no large files through Xet (404): set HF_HUB_DISABLE_XET=1 and push again")
    return _refusal(repo, int(status[1]), None)


def _refusal(repo: str, status: int, after: str | None) -> Exception:
    organisation = repo.partition("/")[0]
    if status in TRY_LATER:
        return RetryableError(f"the hub answered {status}", retry_after(after))
    return PublishError(
        {
            401: "the hub does not take your login (401): run `hf auth login` with a token that may write",
            402: f"the hub asks for payment (402): {organisation} has no room for this; see its billing settings",
            403: f"your login may not write to {organisation} (403): use a token with write access to it",
            404: f"hf://{repo} is not there, or your login may not see it (404): check the name and `hf auth whoami`",
            409: f"hf://{repo} is being changed by somebody else (409): wait for them, and push again",
            412: f"hf://{repo} was changed while this was sending (412): push again, what was sent is not sent twice",
            413: "the hub says that this is too large (413): ask for more room on the repository's page",
        }.get(status, f"the hub answered {status}; push again later, or see its status page")
    )
