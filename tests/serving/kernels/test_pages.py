"""Pages are taken beforehand, as many as the machine can spare, and hold what they held."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

import pytest

from serving.kernels.arena import map_memory
from serving.kernels.pages import HUGE_PAGE, populate, spare_memory
from tests.serving.kernels.mappings import resident_bytes

POPULATE_WRITE = 23


def has_populate() -> bool:
    probe = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(probe))
    libc = ctypes.CDLL(None)
    return not libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), POPULATE_WRITE)


@pytest.fixture
def in_thread():
    """Calls something in a thread of its own and returns the priority that the thread has then."""

    def call(function, *args) -> int:
        found = []

        def run() -> None:
            function(*args)
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    return call


@pytest.mark.skipif(not has_populate(), reason="Linux before 5.14")
@pytest.mark.parametrize(("most", "pages"), [(1 << 30, 8), (4 * HUGE_PAGE, 4)])
def test_memory_is_there_before_it_is_written(in_thread, most, pages):
    tensor = map_memory(8 * HUGE_PAGE + 100)[7:]
    before = resident_bytes(tensor)
    in_thread(populate, [tensor], most)
    taken = resident_bytes(tensor) - before
    assert (pages - 1) * HUGE_PAGE < taken <= (pages + 1) * HUGE_PAGE


def test_memory_keeps_what_it_held(in_thread):
    tensors = [map_memory(3 * HUGE_PAGE + 100)[7:] for _ in range(2)]
    tensors[0][HUGE_PAGE] = 5
    in_thread(populate, tensors)
    assert tensors[0].sum() == 5
    assert tensors[1].sum() == 0


def test_only_the_thread_that_does_it_is_slowed(in_thread):
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert in_thread(populate, [map_memory(100)]) >= max(before, 5)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.parametrize(
    ("files", "spare"),
    [
        ({}, 0),
        ({"meminfo": "MemTotal: 900 kB\nMemAvailable: 500 kB\n"}, 512_000),
        (
            {"meminfo": "MemAvailable: 500 kB\n", "memory.max": "300000\n", "memory.current": "100000\n"},
            200_000,
        ),
        ({"meminfo": "MemAvailable: 500 kB\n", "memory.max": "max\n", "memory.current": "100000\n"}, 512_000),
        ({"memory/memory.limit_in_bytes": "9", "memory/memory.usage_in_bytes": "12"}, 0),
    ],
)
def test_the_machine_and_the_container_both_limit_what_is_taken(tmp_path, files, spare):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert spare_memory(tmp_path / "meminfo", tmp_path) == spare
