"""The files of one source in cog.yaml, with size and digest, and what identifies the source.

Fingerprints are as Cog writes them: the digest of the set of files for a folder, `commit:SHA` for the hub, and of a
file on a web server its strong ETag, `etag:"…"`, or where it has none the digest of its contents.

Cog 0.23.1 reads `include` and `exclude` like lines of a .gitignore file, with the library go-gitignore. Characters that
this library does not take literally, `?` among them, are refused.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline.fetching.https import fetch_file, is_whole, recorded_digest, state
from pipeline.fetching.hub import fetch_listed
from pipeline.fetching.source import HttpsSource, HubSource, parse_source
from pipeline.fetching.wanted import check_names, needed_files
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import HubListing, list_hub
from serving.weights import (
    LockedFile,
    LockedSource,
    check_contents,
    could_run_code,
    hash_files,
    locked_file,
    set_digest,
)

_PLAIN = re.compile(r"/?[\w.* -]+(?:/[\w.* -]+)*/?")
_ANCHORED = re.compile(r"/|.*[^/]/.*\*\.")  # `onnx/*.bin` means the folder onnx at the top


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A source as cog.yaml has it."""

    uri: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


SourceFiles = tuple[LockedSource, tuple[LockedFile, ...]]  # what the lock says of a source, and its files


def read_source(config: SourceConfig, root: Path, kept: Sequence[Path], cache: Path) -> SourceFiles:
    """List a source. Of the hub, only small files are downloaded, because it states no SHA-256 for them.

    Args:
        root: the repository, which local folders are relative to.
        kept: folders that may have the files of an https source already.
        cache: the folder for downloads of https files.

    Raises:
        CheckpointError: the source cannot be read, or is not one that Cog reads the same way.
        WeightsError: a file could run code, or is damaged.
    """
    if config.uri.startswith("hf://"):
        with tempfile.TemporaryDirectory() as folder:
            return _of_hub(config, Path(folder))
    if config.uri.startswith(("https://", "http://")):
        return _of_https(config, kept, cache)
    return _of_folder(config, root)


def local_path(uri: str) -> str:
    """A folder of the repository, relative to it.

    Raises:
        CheckpointError: it is outside, or a scheme that is not supported.
    """
    path = uri.removeprefix("file://").removeprefix("./").rstrip("/")
    if "://" in path or path.startswith("/") or ".." in path.split("/"):
        raise CheckpointError(
            f"{uri!r} is not a folder of this repository; give one, hf://ORG/NAME@REVISION or https://…/FILE"
        )
    return path


def _of_folder(config: SourceConfig, root: Path) -> SourceFiles:
    path = local_path(config.uri)
    every = hash_files(root / path)
    names = set(_selected(config, [file.path for file in every]))
    files = tuple(file for file in every if file.path in names)
    check_contents(root / path, [file.path for file in files])
    return _locked(config, f"file://./{path}", set_digest(every)), files


def _of_hub(config: SourceConfig, folder: Path) -> SourceFiles:
    source = parse_source(config.uri)
    assert isinstance(source, HubSource)

    def chosen(names: Iterable[str]) -> list[str]:
        names = check_names(names)
        return _without_code(_selected(config, names), names)

    listing = list_hub(source, chosen, CONSOLE)
    small = tuple(file for file in listing.files if file.sha256 is None)
    fetch_listed(HubListing(listing.repo, listing.commit, small), folder)
    check_contents(folder, [file.name for file in small])
    files = tuple(
        locked_file(file.name, file.size, file.sha256 or sha256(folder / file.name)) for file in listing.files
    )
    uri = f"hf://{source.repo}" if source.revision == "main" else config.uri
    return _locked(config, uri, f"commit:{listing.commit}"), files


def _selected(config: SourceConfig, names: Sequence[str]) -> list[str]:
    """The files that the patterns take; as in Cog, patterns that take none are a mistake."""
    selected = select(names, config.include, config.exclude)
    if names and not selected:
        raise CheckpointError(f"{config.uri}: include and exclude take none of its {len(names)} files; correct them")
    return selected


def _without_code(chosen: list[str], names: Sequence[str]) -> list[str]:
    """The chosen names; a repository with Python or pickles in it needs an `include`, which the message has."""
    refused = [name for name in chosen if could_run_code(name)]
    if refused:
        take = "".join(f"\n        - {name}" for name in needed_files(names) if not could_run_code(name))
        raise CheckpointError(f"{', '.join(refused[:3])}: could run code when read; take these:\n      include:{take}")
    return chosen


def _of_https(config: SourceConfig, kept: Sequence[Path], cache: Path) -> SourceFiles:
    if config.include or config.exclude:
        raise CheckpointError(f"{config.uri} is one file; leave include and exclude out")
    source = parse_source(config.uri)
    assert isinstance(source, HttpsSource)
    url = source.url.rstrip("/")
    name = file_name(url)
    if could_run_code(name):
        raise CheckpointError(f"{url} could run code when it is read; use safetensors instead")
    stated = state(url)
    digest = recorded_digest(cache / name, stated)
    folder = next((folder for folder in kept if is_whole(folder / name, stated, digest)), cache)
    if folder == cache:  # a web server states no SHA-256
        stated = fetch_file(url, cache / name)
    check_contents(folder, [name])
    file = locked_file(name, stated.size, sha256(folder / name))
    return _locked(config, url, f"etag:{stated.etag}" if stated.etag else file.digest), (file,)


def file_name(url: str) -> str:
    """The last part of an address, where Cog puts the file.

    Raises:
        CheckpointError: there is none.
    """
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    if not name or name.startswith("."):
        raise CheckpointError(f"{url} names no file; give the address of each file, or scripts/lock_weights https://…/")
    check_names([name])
    return name


def _locked(config: SourceConfig, uri: str, fingerprint: str) -> LockedSource:
    """What the lock says of a source. Patterns are trimmed and sorted, or Cog would take cog.yaml for changed."""
    include, exclude = (tuple(sorted(map(str.strip, patterns))) for patterns in (config.include, config.exclude))
    return LockedSource(uri=uri, fingerprint=fingerprint, include=include, exclude=exclude)


def select(names: Iterable[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """The names that match a pattern of `include`, or all if it is empty, and none of `exclude`; sorted.

    `*` stays inside one folder. A pattern may begin in any folder, unless it has a slash at its start or before `*.`;
    one that matches a folder takes all files below it.

    Raises:
        CheckpointError: a pattern has other special characters.
    """
    included, excluded = [_expression(pattern) for pattern in include], [_expression(pattern) for pattern in exclude]
    return [
        name
        for name in sorted(names)
        if (not included or any(pattern.fullmatch(name) for pattern in included))
        and not any(pattern.fullmatch(name) for pattern in excluded)
    ]


def _expression(pattern: str) -> re.Pattern[str]:
    pattern = pattern.strip()
    if not _PLAIN.fullmatch(pattern) or "**" in pattern:
        raise CheckpointError(f"the pattern {pattern!r} has more than names, '*' and '/'; put '*' for other characters")
    start = "" if _ANCHORED.match(pattern) else "(?:.*/)?"
    name = re.escape(pattern.removeprefix("/")).replace(r"\*", "[^/]*")
    return re.compile(start + name + (".*" if pattern.endswith("/") else "(?:/.*)?"))
