"""Uploads files to a repository of the model hub as one commit; called again, it sends only what is not there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token, hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from pipeline.fetching.watch import CONSOLE
from pipeline.publish.errors import PublishError
from pipeline.publish.hub_refusals import explained
from pipeline.weights.console import say
from pipeline.weights.digest import git_digest
from serving.fetching.retry import with_retries

CARD = "README.md"
_WEIGHTS = (".safetensors", ".safetensors.index.json")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to publish.

    Args:
        name: in the repository.
        path: on this machine.
        size: in bytes.
        sha256: in hex.
    """

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """What a push would do.

    Args:
        repo: `organisation/name`.
        private: as it is, or as it would be created.
        head: the commit that it builds on; None if the repository is not there yet.
        send: files to send, smallest first.
        there: names of files that are there with the same digest.
        kept: names of files of the repository that are left as they are.
        is_known: whether the hub was asked; without a login it is not.
    """

    repo: str
    private: bool
    head: str | None
    send: tuple[LocalFile, ...]
    there: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    is_known: bool = True


class HubUpload:
    """Brings files to one repository.

    Args:
        repo: `organisation/name`.
        files: all files that the repository should have. A card that people have edited there is left as it is.
        public: whether everybody may see it.
        is_ours: whether the text of a card was written by this package and not edited since.
    """

    def __init__(
        self, repo: str, files: tuple[LocalFile, ...], *, public: bool, is_ours: Callable[[str], bool]
    ) -> None:
        self._repo, self._files, self._public, self._is_ours = repo, files, public, is_ours
        self._api = HfApi()

    def plan(self) -> UploadPlan:
        """Compare with what is there. Without a login, nothing is known to be there.

        Raises:
            PublishError: the repository may not be changed so.
            CheckpointError: the hub cannot be asked.
        """

        def ask() -> UploadPlan:
            with explained(self._repo):
                return self._compare()

        if get_token() is None:
            return UploadPlan(self._repo, not self._public, None, self._in_order(self._files), is_known=False)
        return with_retries(f"hf://{self._repo}", ask, CONSOLE)

    def run(self) -> str:
        """Create the repository if need be, send what is missing, commit, and check; the commit.

        Raises:
            PublishError: the hub refuses it; the message says why.
            CheckpointError: the hub cannot be reached for long. A later call continues.
        """
        if get_token() is None:
            raise PublishError("you are not logged in to the model hub: run `hf auth login`, or set HF_TOKEN")

        def attempt() -> str:
            with explained(self._repo):
                return self._attempt()

        return with_retries(f"hf://{self._repo}", attempt, CONSOLE)

    def _attempt(self) -> str:
        plan = self._compare()
        if plan.head is None:
            self._api.create_repo(self._repo, private=not self._public, exist_ok=True)
            say(f"Created the {'public' if self._public else 'private'} repository {self._repo}")
            plan = self._compare()
        if not plan.send and plan.head is not None:
            return plan.head
        operations = []
        for file in plan.send:
            say(f"Sending {file.name} ({file.size:,} bytes)")
            operation = CommitOperationAdd(file.name, file.path)
            # Large files go into the hub's storage at once, and stay there if the push is stopped before its commit.
            self._api.preupload_lfs_files(self._repo, [operation], free_memory=False)
            operations.append(operation)
        self._api.create_commit(
            self._repo, operations, commit_message=f"Push {len(operations)} files", parent_commit=plan.head
        )
        after = self._compare()
        if after.send or after.head is None:
            names = ", ".join(file.name for file in after.send)
            raise PublishError(f"after the commit the hub does not have {names} as sent; push again")
        return after.head

    def _compare(self) -> UploadPlan:
        try:
            info = self._api.model_info(self._repo, files_metadata=True)
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404:  # 401: a token that the hub does not take
                raise
            return UploadPlan(self._repo, not self._public, None, self._in_order(self._files))
        remote = {file.rfilename: file for file in info.siblings or ()}
        self._check(info, remote)
        send = [file for file in self._files if not _is_same(file, remote.get(file.name))]
        kept = [name for name in remote if name not in {file.name for file in self._files}]
        if CARD in remote and any(file.name == CARD for file in send) and not self._is_ours(self._remote_card(info)):
            send = [file for file in send if file.name != CARD]
            kept.append(CARD)
        there = [file.name for file in self._files if file not in send and file.name not in kept]
        return UploadPlan(
            self._repo, bool(info.private), info.sha, self._in_order(tuple(send)), tuple(there), tuple(kept)
        )

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
            path = hf_hub_download(self._repo, CARD, revision=info.sha, local_dir=folder)
            return Path(path).read_text("utf-8", errors="replace")

    @staticmethod
    def _in_order(files: tuple[LocalFile, ...]) -> tuple[LocalFile, ...]:
        return tuple(sorted(files, key=lambda file: (file.size, file.name)))


def _is_same(file: LocalFile, remote: RepoSibling | None) -> bool:
    """By SHA-256 for large files; by git's own digest for those that the hub keeps in git."""
    if remote is None:
        return False
    if remote.lfs is not None:
        return bool(remote.lfs.sha256 == file.sha256)
    return remote.size == file.size and remote.blob_id == git_digest(file.path)
