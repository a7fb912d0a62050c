"""Fetch the files of one adapter from the model hub or a web server, within limits of time and size.

Unlike `scripts/fetch`, which prepares folders of any size, this runs in a thread of a server: it prints nothing,
changes no limit of the process, and stops when the server does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from serving.errors import AdapterError
from serving.fetching.download import Downloader, Stated
from serving.fetching.remote_source import HttpsSource, HubSource, RemoteSource
from serving.fetching.retry import Watch
from serving.weights.adapter_files import COMPANIONS, CONFIG, TENSORS, files_that_count


@dataclass(frozen=True)
class FetchLimits:
    """The limits at which a download is given up.

    Args:
        max_bytes: the limit of all files together.
        seconds: the time limit for all of them.
        is_stopped: whether the result is no longer wanted.
    """

    max_bytes: int
    seconds: float
    is_stopped: Callable[[], bool] = lambda: False


def fetch_adapter(source: RemoteSource, folder: Path, limits: FetchLimits) -> None:
    """Download the files of an adapter that are read. Whoever calls compares them with the adapter's digest.

    Raises:
        AdapterError: it cannot be had; the message does not name the source.
        OSError: the disk.
    """
    watch = _watch(limits)
    address, headers, digests = str(source), dict[str, str](), dict[str, str | None]()
    files: dict[str, Stated | None] = {}
    if isinstance(source, HubSource):
        from huggingface_hub import constants, get_token

        from serving.fetching.listing import list_hub

        listing = list_hub(source, files_that_count, watch)
        files = {file.name: Stated(file.size) for file in listing.files}
        digests = {file.name: file.sha256 for file in listing.files}
        address = f"{constants.ENDPOINT}/{source.repo}/resolve/{listing.commit}/"
        headers = {} if (token := get_token()) is None else {"authorization": f"Bearer {token}"}
    with closing(Downloader(address, watch, headers)) as downloader:
        if isinstance(source, HttpsSource):
            files = {name: downloader.ask(address + name) for name in (CONFIG, TENSORS, *COMPANIONS)}
        there = {name: stated for name, stated in files.items() if stated is not None}
        for name in (CONFIG, TENSORS):
            if name not in there:
                raise watch.error(name, "it is missing or may not be read")
        if sum(stated.size for stated in there.values()) > limits.max_bytes:
            raise AdapterError(f"its files have over {limits.max_bytes:,} bytes, which is the limit")
        for name, stated in there.items():
            (folder / name).parent.mkdir(exist_ok=True)
            downloader.fetch(address + name, folder / name, stated, digests.get(name))


def _watch(limits: FetchLimits) -> Watch:
    """It ends the download at its limits, and names no address."""
    deadline = time.monotonic() + limits.seconds

    def error(where: str, why: str) -> AdapterError:
        name = where.rpartition("/")[2]
        return AdapterError(f"{name if files_that_count([name]) else 'its source'}: {why}")

    def check() -> None:
        if limits.is_stopped():
            raise AdapterError("the server was closed while it was fetched")
        if time.monotonic() > deadline:
            raise AdapterError(f"it was not fetched within {limits.seconds:g} s; try again later")

    def sleep(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            check()
            time.sleep(0.1)

    return Watch(error=error, check=check, sleep=sleep, attempts=3, timeout=10.0)
