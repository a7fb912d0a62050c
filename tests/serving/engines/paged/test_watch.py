"""A hung step is told from a starved one by the CPU time of its thread and by what the other threads do."""

import threading
import time

import pytest

from serving.engines.paged.watch import StepWatch


class ScriptedWatch(StepWatch):
    """A watch whose clocks the test turns, and whose other threads the test starts and stops."""

    wall = 100.0
    cpu = 7.0
    others = False

    def now(self) -> float:
        return self.wall

    def cpu_time(self) -> float:
        return self.cpu

    def others_can_run(self) -> bool:
        return self.others

    def after(self, wall: float, cpu: float, others: bool = False) -> bool:
        """The verdict of one check, which comes this much later than the last one."""
        self.wall += wall
        self.cpu += cpu
        self.others = others
        return self.is_hung()


@pytest.fixture
def watch():
    return ScriptedWatch(blocked_limit=5.0, busy_limit=8.0)


def test_between_steps_nothing_hangs(watch):
    assert not any(watch.after(1, 0) for _ in range(1000))
    watch.begin()
    watch.end()
    assert not any(watch.after(1, 0) for _ in range(1000))


def test_no_processor_time_for_too_long_is_a_hang_also_after_some_work(watch):
    watch.begin()
    assert not watch.after(1, 0.3)
    assert not any(watch.after(1, 0) for _ in range(5))
    assert watch.after(1, 0)


def test_a_step_that_gets_little_processor_time_is_not(watch):
    watch.begin()
    assert not any(watch.after(1, 0.01 * (i % 4 == 0)) for i in range(400))


def test_a_step_whose_threads_wait_for_a_core_is_not(watch):
    watch.begin()
    assert not any(watch.after(1, 0, others=True) for _ in range(50))
    assert not watch.after(1, 0.01)
    assert not any(watch.after(1, 0, others=True) for _ in range(50))


def test_threads_that_wait_for_each_other_are_found_although_one_was_starved_before(watch):
    watch.begin()
    assert not any(watch.after(1, 0, others=True) for _ in range(50))
    assert not any(watch.after(1, 0) for _ in range(5))
    assert watch.after(1, 0)


def test_a_step_that_waits_for_a_thread_that_spins_hangs_in_the_end(watch):
    watch.begin()
    assert any(watch.after(1, 0, others=True) for _ in range(100))


def test_time_in_which_the_whole_process_was_stopped_is_not_the_steps(watch):
    watch.begin()
    for _ in range(3):
        assert not watch.after(3600, 0)
    assert not watch.after(0.001, 0)
    watch.end()
    watch.begin()
    assert not watch.after(3600, 3600)  # a virtual machine that was stopped counts as CPU time


def test_checks_of_many_requests_at_once_count_no_time_twice(watch):
    watch.begin()
    for _ in range(4):
        assert not watch.after(1.2, 0)
        assert not any(watch.after(0, 0) for _ in range(300))
    assert not any(watch.after(0.001, 0) for _ in range(100))


def test_computing_without_end_is_a_hang(watch):
    watch.begin()
    assert not any(watch.after(1, 1) for _ in range(8))
    assert watch.after(1, 1)


def test_each_step_starts_anew(watch):
    for _ in range(5):
        watch.begin()
        assert not any(watch.after(1, 1) for _ in range(4))
        assert not any(watch.after(1, 0) for _ in range(4))
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
    deadline = time.monotonic() + 30
    while not watch.is_hung():  # while this thread computes
        assert time.monotonic() < deadline
    let_go.set()
    thread.join()
    assert not watch.is_hung()
