"""Parses the source of a checkpoint or an adapter: `hf://ORG/NAME@REVISION`, `https://…`, or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.weights.errors import CheckpointError

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on the model hub.

    Args:
        repo: `organisation/name`.
        revision: a branch, tag or commit; None means the main branch.
    """

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class HttpsSource:
    """A folder on a web server; its files lie below `url`, which ends with a slash."""

    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = HubSource | HttpsSource | FolderSource


def parse_source(text: str) -> Source:
    """Parse a source that a user gave.

    Raises:
        CheckpointError: the text has none of the three forms, or the folder does not exist.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        path = Path(text).expanduser()
        if not path.is_dir():
            raise CheckpointError(f"{text}: no such folder; give a folder, hf://ORG/NAME@REVISION or https://…/")
        return FolderSource(path)
    if scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match is None:
            raise CheckpointError(f"{text}: not of the form hf://ORG/NAME or hf://ORG/NAME@REVISION")
        return HubSource(match["repo"], match["revision"])
    parts = urlsplit(text)
    # Plain http is allowed only to this machine, where nobody can intercept it.
    if scheme == "https" or (scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
        if parts.query or parts.username or parts.password:
            raise CheckpointError("an https source may not hold a password or a query, which would end up in logs")
        return HttpsSource(text.rstrip("/") + "/")
    raise CheckpointError(f"{text}: {scheme}:// is not supported; give a folder, hf://ORG/NAME@REVISION or https://…/")
