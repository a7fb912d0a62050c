"""A process that ends in the middle of a step ends cleanly, also if nobody has closed the engine."""

import subprocess
import sys
from pathlib import Path

from tests.serving.kernels.builds import needs_compiler

ROOT = Path(__file__).parents[4]
# Functions registered with atexit run in reverse order: this one after those of every import.
ENGINE = """
import atexit, threading

def tell():
    is_alive = "paged-engine" in [thread.name for thread in threading.enumerate()]
    try:
        core.raise_if_dead()
    except EngineDeadError as error:
        print("runs" if is_alive else "ended", error)

atexit.register(tell)
import asyncio
from serving.errors import EngineDeadError
from tests.serving.engines.paged.paged_engines import ask, make_engine

parts = make_engine()
core = parts.core

async def leave():
    await anext(parts.engine.generate(ask("a", max_tokens=300)))

asyncio.run(leave())
"""
KERNELS = """
import atexit, threading
calls, enough, stopping = 0, threading.Event(), False

def wait():
    global calls, stopping
    calls = 0
    enough.clear()
    print("went on" if enough.wait(60) else "stopped")
    stopping = True
    thread.join()

atexit.register(wait)
import torch
from serving.kernels.library import CpuLibrary
from tests.serving.kernels.builds import library_of

library = CpuLibrary(library_of("native"), 2)
x = torch.ones(64, 64)

def call():
    global calls
    while not stopping:
        library.call("hk_silu_and_mul", x.data_ptr(), 64, 32, x.data_ptr())
        calls += 1
        if calls > 100:
            enough.set()

thread = threading.Thread(target=call, daemon=True)
thread.start()
enough.wait()
"""


def run(program: str) -> str:
    """What a program prints; it must end without an error."""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_engines_thread_ends_before_the_interpreter():
    assert run(ENGINE) == "ended the engine was closed"


@needs_compiler
def test_kernels_can_still_be_called_while_the_interpreter_exits():
    assert run(KERNELS) == "went on"
