"""Builds of the C++ kernels for ARM by a cross compiler, run by an emulator of its processors.

driver = ArmDriver(build_driver(("-march=armv8-a", "-O1"), folder), cpu="cortex-a72")
[out] = driver.run("dense", weight, x, DTYPE, inputs, outputs)
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.kernels import build

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_SOURCE = Path(__file__).parent / "arm_driver.cpp"
_TIMEOUT = 300.0  # seconds


def require_tools() -> None:
    """Skip where the cross compiler or the emulator is missing, or fail if REQUIRE_ARM is set."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        text = f"no {' and no '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user"
        pytest.fail(text) if os.environ.get("REQUIRE_ARM") else pytest.skip(text)


def build_driver(flags: tuple[str, ...], folder: Path) -> Path:
    """Compile arm_driver.cpp and the kernels.

    Args:
        flags: of the processor and for optimization; the others are those of every build.
        folder: for the program.

    Raises:
        AssertionError: they do not compile.
    """
    others = [flag for flag in build.FLAGS if flag not in ("-march=native", "-shared", "-fPIC", "-O3")]
    program = folder / "driver"
    command = [COMPILER, *others, *flags, "-static", f"-I{build.SOURCES}", str(_SOURCE), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    assert done.returncode == 0, done.stderr
    return program


class ArmDriver:
    """Runs kernels one by one, each in a process of its own.

    Args:
        program: from `build_driver`.
        cpu: the processor that is emulated; an instruction that it does not have kills the process.
    """

    def __init__(self, program: Path, cpu: str) -> None:
        self._command = [EMULATOR, "-cpu", cpu, str(program)]

    def run(self, kernel: str, *arguments: Tensor | int) -> list[Tensor]:
        """The kernel's outputs, flat float32, in the order in which arm_driver.cpp writes them."""
        inputs = b"".join(_array(argument) for argument in (kernel, *arguments))
        done = subprocess.run(self._command, input=inputs, capture_output=True, timeout=_TIMEOUT)
        assert done.returncode == 0, (kernel, done.returncode, done.stderr.decode())
        outputs, at = [], 0
        while at < len(done.stdout):
            (size,) = struct.unpack_from("<q", done.stdout, at)
            outputs.append(torch.frombuffer(bytearray(done.stdout[at + 8 : at + 8 + size]), dtype=torch.float32))
            at += 8 + size
        return outputs


def _array(value: Tensor | int | str) -> bytes:
    if isinstance(value, str):
        data = value.encode()
    elif isinstance(value, int):
        data = struct.pack("<q", value)
    else:
        data = value.contiguous().view(torch.uint8).numpy().tobytes()
    return struct.pack("<q", len(data)) + data
