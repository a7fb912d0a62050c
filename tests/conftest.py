"""Settings of all tests: no deadline for a property's example, SIGINT as in a terminal, Triton, runs for GPUs only."""

from __future__ import annotations

import os
import signal
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from serving.devices import has_cuda_device

# Processes that a shell starts in the background ignore SIGINT, and so do their children. Some tests send it to
# commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

if find_spec("hypothesis"):  # the environment with vLLM has none
    from hypothesis import settings

    settings.register_profile("no_deadline", deadline=None)  # a busy machine may take any time
    settings.load_profile("no_deadline")

# Triton reads this when it is first imported, by whatever test. With a GPU its kernels are compiled.
if find_spec("triton") and not has_cuda_device():
    os.environ["TRITON_INTERPRET"] = "1"

# Expressions of markers that leave only tests of the kernels for GPUs
GPU_TESTS_ONLY = ("gpu", "interpreted and not gpu")


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
