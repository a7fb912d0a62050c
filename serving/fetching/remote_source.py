"""Parse the remote source of a checkpoint or an adapter: `hf://ORG/NAME@REVISION` or `https://…`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_HUB: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_LOCAL: Final = ("127.0.0.1", "localhost")


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


RemoteSource = HubSource | HttpsSource


def parse_remote(text: str) -> RemoteSource:
    """Parse a source that has a scheme.

    Raises:
        ValueError: it is wrong; the message says what is right.
    """
    scheme, _, rest = text.partition("://")
    if scheme == "hf":
        match = _HUB.fullmatch(rest)
        if match is None:
            raise ValueError(f"{text}: not of the form hf://ORG/NAME or hf://ORG/NAME@REVISION")
        return HubSource(match["repo"], match["revision"])
    if is_private(text):
        parts = urlsplit(text)
        if parts.query or parts.username or parts.password:
            raise ValueError("an https source may not hold a password or a query, which would end up in logs")
        return HttpsSource(text.rstrip("/") + "/")
    raise ValueError(f"{text}: {scheme}:// is not supported; give a folder, hf://ORG/NAME@REVISION or https://…/")


def is_private(url: str) -> bool:
    """Whether nobody can read or change what is sent: https, or plain http to this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
