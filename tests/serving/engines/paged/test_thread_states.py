"""Whether a thread computes or waits for a core is read from the system."""

import hashlib
import sys
import threading
import time
from pathlib import Path

import pytest

from serving.engines.paged.watch import others_can_run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")


def tasks(folder: Path, *stats: str) -> Path:
    """A folder like /proc/self/task."""
    for number, stat in enumerate(stats):
        (folder / f"thread{number}").mkdir()
        (folder / f"thread{number}" / "stat").write_text(stat)
    return folder


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_thread_that_waits_for_a_core_or_a_disk_can_run(tmp_path, state):
    assert others_can_run(tasks(tmp_path, "7 (python) S 1 7", f"8 (pool 1) {state} 1 7"))


def test_threads_that_wait_for_each_other_cannot(tmp_path):
    assert not others_can_run(tasks(tmp_path, "7 (python) S 1 7", "8 (a) R (b) S 1 7"))


def test_the_calling_thread_is_not_among_the_others(tmp_path):
    folder = tasks(tmp_path, "8 (python) R 1 7")
    assert others_can_run(folder)
    (folder / "thread0").rename(folder / str(threading.get_native_id()))
    assert not others_can_run(folder)


def test_a_thread_that_has_just_ended_is_skipped(tmp_path):
    folder = tasks(tmp_path, "7 (python) S 1 7")
    (folder / "8").mkdir()
    assert not others_can_run(folder)
    assert not others_can_run(tmp_path / "no such folder")


@LINUX
def test_a_real_thread_that_computes_is_seen():
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"password", b"salt", 1_000_000))
    thread.start()  # it computes without the GIL for about half a second
    deadline = time.monotonic() + 30
    while not others_can_run():
        assert time.monotonic() < deadline and thread.is_alive()
    thread.join()
