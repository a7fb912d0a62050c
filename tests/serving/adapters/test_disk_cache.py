"""Adapters on disk: complete or not there, checked each time, least recently used out, never one in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from serving.adapters.disk_cache import DiskCache
from serving.errors import AdapterError, EngineBusyError
from serving.weights.adapter_files import CONFIG, TENSORS, adapter_digest

SIZE = 1000


def writer(letter, log=None):
    """Puts an adapter of SIZE bytes into a folder."""

    def fetch(folder):
        (folder / CONFIG).write_bytes(b"{}")
        (folder / TENSORS).write_bytes(letter.encode() * (SIZE - 2))
        if log is not None:
            log.append(letter)

    return fetch


@pytest.fixture
def digest(tmp_path):
    def digest(letter):
        folder = tmp_path / f"original-{letter}"
        folder.mkdir(exist_ok=True)
        writer(letter)(folder)
        return adapter_digest(folder)

    return digest


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(root):
    return DiskCache(root, max_bytes=2 * SIZE)


def names(root):
    return {path.name for path in root.iterdir()} - {".lock"}


def test_one_is_fetched_once_and_is_there_after_a_restart(cache, root, digest):
    log = []
    for each in (cache, cache, DiskCache(root, max_bytes=SIZE)):
        with each.lease(digest("a"), writer("a", log)) as folder:
            assert (folder / TENSORS).read_bytes() == b"a" * (SIZE - 2)
    assert log == ["a"]


def test_the_least_recently_used_is_removed(cache, root, digest):
    for letter in "abac":
        with cache.lease(digest(letter), writer(letter)):
            pass
    assert names(root) == {digest(letter).removeprefix("sha256:") for letter in "ac"}


def test_one_in_use_is_never_removed(cache, root, digest):
    with ExitStack() as stack:
        folders = [stack.enter_context(cache.lease(digest(letter), writer(letter))) for letter in "ab"]
        with pytest.raises(EngineBusyError, match=r"needs 1,000 bytes on disk, and adapters in use leave 0 of 2,000"):
            stack.enter_context(DiskCache(root, max_bytes=2 * SIZE).lease(digest("c"), writer("c")))
        assert all((folder / TENSORS).is_file() for folder in folders)
        assert len(names(root)) == 2
    with cache.lease(digest("c"), writer("c")):
        pass


def test_one_that_the_cache_cannot_hold_says_which_setting(root, digest):
    with (
        pytest.raises(AdapterError, match="ADAPTER_CACHE_MB"),
        DiskCache(root, max_bytes=SIZE - 1).lease(digest("a"), writer("a")),
    ):
        pass
    assert names(root) == set()


def test_a_wrong_digest_and_a_failed_download_leave_nothing(cache, root, digest):
    def fails(folder):
        writer("a")(folder)
        raise AdapterError("the connection broke")

    for fetch, message in ((writer("b"), "has the digest sha256:.*, not sha256:"), (fails, "the connection broke")):
        with pytest.raises(AdapterError, match=message), cache.lease(digest("a"), fetch):
            pass
    assert names(root) == set()


def test_what_was_damaged_on_disk_is_fetched_again(cache, root, digest):
    log = []
    with cache.lease(digest("a"), writer("a", log)) as folder:
        pass
    (folder / TENSORS).write_bytes(b"x")
    with cache.lease(digest("a"), writer("a", log)) as folder:
        assert adapter_digest(folder) == digest("a")
    (folder / "chat_template.jinja").write_text("another prompt")  # a file that was not there before counts too
    with cache.lease(digest("a"), writer("a", log)) as folder:
        assert not (folder / "chat_template.jinja").exists()
    assert log == ["a", "a", "a"]


def test_threads_that_want_the_same_or_others_get_them(root, digest):
    """A small cache is full most of the time."""
    cache = DiskCache(root, max_bytes=4 * SIZE)
    digests = {letter: digest(letter) for letter in "abcdef"}

    def use(letter):
        with cache.lease(digests[letter], writer(letter)) as folder:
            return adapter_digest(folder) == digests[letter]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(use, "aabbccddeeff" * 20))
    assert sum(1 for name in names(root) if not name.startswith(".")) <= 4
    with cache.lease(digests["a"], writer("a")):
        pass
    assert not [name for name in names(root) if name.startswith(".partial")]


def test_what_a_killed_process_left_is_no_adapter_and_is_removed(cache, root, digest):
    script = (
        "import sys, time; from pathlib import Path; from serving.adapters.disk_cache import DiskCache\n"
        "def fetch(folder):\n"
        "    (folder / 'adapter_model.safetensors').write_bytes(b'half')\n"
        "    print('half', flush=True); time.sleep(60)\n"
        f"with DiskCache(Path({str(root)!r}), max_bytes=9999).lease({digest('a')!r}, fetch): pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    with cache.lease(digest("b"), writer("b")):  # the download of a living process stays
        assert len([name for name in names(root) if name.startswith(".partial")]) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    started = time.monotonic()
    with cache.lease(digest("a"), writer("a")) as folder:
        assert adapter_digest(folder) == digest("a")
    assert time.monotonic() - started < 30
    assert not [name for name in names(root) if name.startswith(".partial")]
