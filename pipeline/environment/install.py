"""Installs a virtual environment from pinned requirement files with uv, showing progress on stderr."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.environment.pins import digest, has_torch_of_machine, included, is_current, read_state, requirement_files
from pipeline.environment.uv import Uv, fetch_uv
from pipeline.environment.waiting_lock import waiting_lock
from pipeline.paths import ROOT
from serving.devices import has_cuda_device

PYTHON = "3.11"


def install(venv: Path, name: str) -> None:
    """Install environment `name` into `venv`. Safe with several processes, and after one that was killed.

    Exits if uv fails; uv itself has printed the reason.
    """
    with _lock(venv.name):
        if is_current(venv, name):
            return  # another process did it while we waited
        base = find_python()
        _say(f"Setting up {venv.name} with Python {PYTHON} (once, about a minute)\n")
        uv = load_uv()
        plans = [uv.plan(file, base) for file in requirement_files(name)]  # fails before anything is changed
        before = read_state(venv)
        # An interrupted install leaves packages that look complete, and for uv PyTorch's CPU build is as good as that
        # for CUDA, so start over; uv's cache makes that quick.
        if "installing" in before or not has_torch_of_machine(before) or not _works(venv):
            before = {}
            uv.make(venv, base)
        _write_state(venv, {"installing": name})
        for plan in plans:
            uv.install(venv, plan)
        done = {stem: digest(stem) for stem in [*(file.stem for file in included(name)), name]}
        # A CPU build that was there is still there.
        has_cuda = has_cuda_device() and (not before or before.get("torch") == "cuda")
        _write_state(venv, {**before, **done, "torch": "cuda" if has_cuda else "cpu"})
        _say(f"{venv.name} is ready\n")


def load_uv() -> Uv:
    """The pinned uv; only one process at a time fetches it. Exits if fetching fails."""
    with _lock("uv"):
        return fetch_uv(find_python())


def find_python() -> str:
    """The path of the Python that environments are made with. Exits if there is no Python 3.11."""
    for candidate in (sys.executable, shutil.which(f"python{PYTHON}"), shutil.which("python3")):
        probe = [candidate or "", "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        try:
            found = subprocess.run(probe, capture_output=True, text=True).stdout.strip()
        except OSError:
            continue
        if found == PYTHON:
            return str(candidate)
    running = ".".join(map(str, sys.version_info[:3]))
    sys.exit(
        f"Python {PYTHON} is needed, with its venv module; this is Python {running} and no python{PYTHON} "
        f"is on PATH. Install it (Debian: apt-get install python{PYTHON}-venv) and run this again."
    )


def _lock(name: str) -> AbstractContextManager[int]:
    """The lock build/NAME.lock, a file outside the environment's folder because that may be cleared."""
    (ROOT / "build").mkdir(exist_ok=True)
    return waiting_lock(ROOT / "build" / f"{name}.lock", f"Waiting for another process that is setting up {name}")


def _works(venv: Path) -> bool:
    """Whether the environment's Python starts; it does not if its base Python was removed."""
    python = venv / "bin" / "python"
    return python.exists() and not subprocess.run([python, "-c", ""], capture_output=True).returncode


def _write_state(venv: Path, state: dict[str, str]) -> None:
    partial = venv / "installed.json.partial"
    partial.write_text(json.dumps(state), "utf-8")
    partial.replace(venv / "installed.json")  # atomic


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
