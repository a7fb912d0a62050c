"""Parses the source of a checkpoint or an adapter: `hf://ORG/NAME@REVISION`, `https://…`, or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.weights.errors import CheckpointError
from serving.fetching.remote_source import HttpsSource, HubSource, parse_remote

__all__ = ["FolderSource", "HttpsSource", "HubSource", "Source", "parse_source"]


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
    if "://" not in text:
        path = Path(text).expanduser()
        if not path.is_dir():
            raise CheckpointError(f"{text}: no such folder; give a folder, hf://ORG/NAME@REVISION or https://…/")
        return FolderSource(path)
    try:
        return parse_remote(text)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
