"""Settings of all tests: examples of properties, SIGINT as in a terminal, Triton, order of files, GPU runs."""

from __future__ import annotations

import os
import signal
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from serving.devices import has_cuda_device

# Processes that a shell starts in the background ignore SIGINT, and so do their children. Some tests send it to
# commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):  # the environment with vLLM has none
    from hypothesis import HealthCheck, settings

    # A busy machine may take any time for an example.
    unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("short", unhurried, max_examples=30)
    settings.register_profile("long", unhurried, max_examples=100)  # scripts/test --all
    settings.load_profile("short")

# Messages of commands are not wrapped, however long a path in them is.
os.environ["TERMINAL_WIDTH"] = "300"  # typer's

# Triton reads this when it is first imported, by whatever test. With a GPU its kernels are compiled.
if find_spec("triton") and not has_cuda_device():
    os.environ["TRITON_INTERPRET"] = "1"

# Markers of files that take long
LONG = ("awq", "clone", "slow", "server", "weights", "interpreted")
# Expressions of markers that leave only tests of the kernels for GPUs
GPU_TESTS_ONLY = ("gpu", "interpreted and not gpu")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files that take long come first, so that no process is left alone with one at the end."""
    ranks = {item.path: len(LONG) for item in items}
    for item in items:
        named = [rank for rank, mark in enumerate(LONG) if item.get_closest_marker(mark)]
        ranks[item.path] = min(ranks[item.path], *named, len(LONG))
    items.sort(key=lambda item: ranks[item.path])


def pytest_ignore_collect(collection_path, config):
    """A run of only those tests imports no other file: a GPU machine lacks the packages that others need."""
    if config.option.markexpr not in GPU_TESTS_ONLY or collection_path in places_of_gpu_tests():
        return None
    return True


def pytest_configure(config):
    """Such a run meets other versions of packages, whose new warnings say nothing about the kernels."""
    if config.option.markexpr in GPU_TESTS_ONLY:
        config.addinivalue_line("filterwarnings", "default")


@cache
def places_of_gpu_tests():
    """The files that mark a test so, and the folders that they are in."""
    texts = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    files = {path for path, text in texts.items() if "pytest.mark.gpu" in text or "ON_THE_GPU" in text}
    return files.union(*(path.parents for path in files))
