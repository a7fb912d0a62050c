"""Pages are allocated in advance, as many as the machine has free, and keep their contents."""

import sys
import threading

import pytest

from serving.kernels.arena import HUGE_PAGE, map_memory, populate
from serving.kernels.library import CpuLibrary
from tests.serving.kernels.mappings import resident_bytes


@pytest.fixture(scope="module")
def touch(library_path):
    return CpuLibrary(library_path, 1).touch


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a mapping has")
@pytest.mark.parametrize(("max_bytes", "pages"), [(1 << 30, 8), (4 * HUGE_PAGE, 4)])
def test_memory_is_allocated_before_it_is_written(touch, max_bytes, pages):
    tensor = map_memory(8 * HUGE_PAGE + 100)[7:]
    before = resident_bytes(tensor)
    populate([tensor], touch, max_bytes)
    taken = resident_bytes(tensor) - before
    assert (pages - 1) * HUGE_PAGE < taken <= (pages + 1) * HUGE_PAGE


def test_memory_keeps_its_contents(touch):
    tensors = [map_memory(3 * HUGE_PAGE + 100)[7:] for _ in range(2)]
    tensors[0][HUGE_PAGE] = 5
    populate(tensors, touch, 1 << 30)
    assert tensors[0].sum() == 5
    assert tensors[1].sum() == 0


def test_memory_may_be_written_meanwhile(touch):
    """The first byte of each page, which is the one that is touched, is counted up while another thread touches it."""
    memory = map_memory(16 * HUGE_PAGE)  # large, so that both threads are in their calls most of the time
    stop = threading.Event()

    def keep_touching() -> None:
        while not stop.is_set():
            touch(memory.data_ptr(), memory.nbytes)

    thread = threading.Thread(target=keep_touching)
    thread.start()
    lost = 0
    for value in range(300):
        memory[:: 1 << 12] = value % 256
        lost += int((memory[:: 1 << 12] != value % 256).sum())
    stop.set()
    thread.join()
    assert not lost


def test_without_free_memory_nothing_is_allocated(touch):
    populate([], touch)
    populate([map_memory(100)], lambda address, size: pytest.fail("touched"), 0)
