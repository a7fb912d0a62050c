"""Describes the machine and the code of a run."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.paths import ROOT
from serving.devices import available_cores

VERSION = 1  # of the results of scripts/dev/bench
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8")
PACKAGES = ("torch", "numpy", "llguidance", "tokenizers", "transformers")


def about_run() -> dict[str, Any]:
    """What a result of scripts/dev/bench says of its run: date, command, checkout and machine."""
    return {
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["scripts/dev/bench", *sys.argv[1:]]),
        **describe_checkout(),
        "machine": describe_machine(),
    }


def describe_machine(proc: Path = Path("/proc")) -> dict[str, Any]:
    """CPU, memory, versions, and the load at the start of the run; None for what the machine does not tell (`proc`)."""
    cpu = _fields(proc / "cpuinfo")
    flags = cpu.get("flags", "").split()
    memory = _fields(proc / "meminfo").get("MemTotal")  # such as `16384 kB`
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": available_cores(),
        "memory_gib": None if memory is None else round(int(memory.split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
        "versions": {name: _version(name) for name in PACKAGES},
    }


def describe_checkout(root: Path = ROOT) -> dict[str, Any]:
    """The commit, and how many files have been changed since; None without git, or outside a checkout."""
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    changed = None if status is None else len(status.splitlines())
    return {"commit": _git(root, "rev-parse", "HEAD"), "changed_files": changed}


def _git(root: Path, *arguments: str) -> str | None:
    """The text that git prints; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return None if done.returncode else done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _fields(path: Path) -> dict[str, str]:
    """The first value of each field in a file with lines such as `name: value`; none if it cannot be read."""
    found: dict[str, str] = {}
    try:
        text = path.read_text("utf-8")
    except OSError:
        return found
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
