"""Describe the machine and the code of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.benchmark.peers import num_cores
from pipeline.paths import ROOT

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8")
PACKAGES = ("torch", "numpy", "llguidance", "tokenizers", "transformers")


def describe_machine() -> dict[str, Any]:
    """CPU, memory, and the load at the start of the run."""
    cpu = _fields(Path("/proc/cpuinfo"), ":")
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": num_cores(),
        "memory_gib": round(int(_fields(Path("/proc/meminfo"), ":")["MemTotal"].split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }


def describe_checkout() -> dict[str, Any]:
    """The commit, and whether files have been changed since."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": _git("rev-parse", "HEAD"), "changed_files": len(status.splitlines())}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _fields(path: Path, separator: str) -> dict[str, str]:
    """The first value of each field in a file."""
    found: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        name, _, value = line.partition(separator)
        found.setdefault(name.strip(), value.strip())
    return found
