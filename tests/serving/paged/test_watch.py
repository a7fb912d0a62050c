"""A hung step is told from a starved one by the processor time of its thread."""

import threading
import time

import pytest

from serving.paged.watch import StepWatch


class ScriptedWatch(StepWatch):
    """A watch whose two clocks the test turns."""

    wall = 100.0
    cpu = 7.0

    def now(self) -> float:
        return self.wall

    def cpu_time(self) -> float:
        return self.cpu

    def after(self, wall: float, cpu: float) -> bool:
        self.wall += wall
        self.cpu += cpu
        return self.is_hung()


@pytest.fixture
def watch():
    return ScriptedWatch(blocked_limit=5.0, busy_limit=8.0)


def test_between_steps_nothing_hangs(watch):
    assert not watch.after(1000, 0)
    watch.begin()
    watch.end()
    assert not watch.after(1000, 0)


def test_no_processor_time_for_too_long_is_a_hang_also_after_some_work(watch):
    watch.begin()
    assert not watch.after(2, 0.3)
    assert not watch.after(4, 0)
    assert watch.after(2, 0)


def test_a_step_that_gets_little_processor_time_is_not(watch):
    watch.begin()
    assert not any(watch.after(4, 0.01) for _ in range(100))


def test_computing_without_end_is_a_hang(watch):
    watch.begin()
    assert not watch.after(7, 7)
    assert watch.after(2, 2)


def test_each_step_starts_anew(watch):
    for _ in range(5):
        watch.begin()
        assert not watch.after(4, 4)
        watch.end()


def test_the_clock_is_that_of_the_thread_that_steps():
    watch = StepWatch(blocked_limit=0.1, busy_limit=8.0)
    let_go = threading.Event()

    def step():
        watch.begin()
        let_go.wait()
        watch.end()

    thread = threading.Thread(target=step)
    thread.start()
    deadline = time.monotonic() + 5
    while not watch.is_hung():  # while this thread computes
        assert time.monotonic() < deadline
    let_go.set()
    thread.join()
    assert not watch.is_hung()
