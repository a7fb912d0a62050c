"""Makes a virtual environment from pinned requirement files.

Owns: pip, the lock that keeps two processes apart, the state file that says "whole", progress on
stderr. Knows nothing of which script wanted it. Standard library only, any Python from 3.8.

    install(Path(".venv"), "cpu")
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator  # noqa: UP035 – subscripting collections.abc needs Python 3.9

from _environment import ROOT, digest, included, is_current, read_state, requirement_files

PYTHON = "3.11"


def install(venv: Path, name: str) -> None:
    """Bring `venv` to what `name` asks for; one process at a time, and a killed one is made good.

    Exits with pip's last lines when pip fails.
    """
    base = _find_python()
    with _lock(venv.name):
        if is_current(venv, name):
            return  # another process did it while we waited
        _say(f"Setting up {venv.name} with Python {PYTHON} (once, about 2 minutes)\n")
        before = read_state(venv)
        # A killed pip leaves packages that look installed, so start over; its cache makes that quick.
        if "installing" in before or not _has_pip(venv):
            before = {}
            _run([base, "-m", "venv", "--clear", str(venv)])
        _write_state(venv, {"installing": name})
        try:
            for file in requirement_files(name):
                _pip_install(venv, file, total=_count_pins([*included(name), file]))
        except SystemExit:  # pip failed, and undid what it had begun: what was whole still is
            _write_state(venv, before)
            raise
        done = {stem: digest(stem) for stem in [*(file.stem for file in included(name)), name]}
        _write_state(venv, {**before, **done})
        _say(f"{venv.name} is ready\n")


def _find_python() -> str:
    """The interpreter to make the environment with. Exits when there is no Python 3.11."""
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
        f"is on PATH. Install it (Debian: apt-get install python{PYTHON}-venv) and call this again."
    )


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Hold build/NAME.lock; it lies outside the environment because that may be cleared."""
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Waiting for another process that is setting up {name}\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _has_pip(venv: Path) -> bool:
    python = venv / "bin" / "python"
    return python.exists() and not subprocess.run([python, "-m", "pip", "-V"], capture_output=True).returncode


def _write_state(venv: Path, state: dict[str, str]) -> None:
    partial = venv / "installed.json.partial"
    partial.write_text(json.dumps(state), "utf-8")
    partial.replace(venv / "installed.json")  # atomic


def _count_pins(files: list[Path]) -> int:
    return sum(len(re.findall(r"^[A-Za-z0-9].*==", file.read_text("utf-8"), re.M)) for file in files)


def _pip_install(venv: Path, file: Path, total: int) -> None:
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--no-input", "-r", str(file)]
    if file.stem.endswith(".no-deps"):
        command += ["--no-deps", "--no-build-isolation"]
    _run(command, _Progress(venv, total))


def _run(command: list[str], progress: _Progress | None = None) -> None:
    """Run `command`; exit with its last lines when it fails."""
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # PIPE above
        for line in process.stdout:
            tail.append(line)
            if progress:
                progress.read(line)
    if progress:
        progress.close()
    if process.returncode:
        sys.exit(
            f"{''.join(tail)}\nThis failed: {' '.join(command)}\nMend the cause above and call this again."
        )


class _Progress:
    """Packages fetched, then packages installed, of `total`; one line on a terminal, few otherwise."""

    def __init__(self, venv: Path, total: int) -> None:
        self._site_packages = venv / "lib" / f"python{PYTHON}" / "site-packages"
        self._total = total
        self._collected = 0
        self._finished = threading.Event()
        self._watcher: threading.Thread | None = None

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        if line.startswith(("Collecting ", "Processing ")):
            self._collected += 1
            self._show("found", self._collected, line.split()[1].rsplit("/")[-1])
        elif line.startswith("Installing collected packages") and self._watcher is None:
            # pip is silent from here until all is done; the folder shows how far it is.
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """Stop watching and end the line."""
        self._finished.set()
        if self._watcher:
            self._watcher.join()
        if sys.stderr.isatty():
            _say("\r\033[K")

    def _watch(self) -> None:
        while not self._finished.wait(0.5):
            self._show("installed", sum(1 for _ in self._site_packages.glob("*.dist-info")), "")

    def _show(self, verb: str, count: int, package: str) -> None:
        text = f"  {min(count, self._total)}/{self._total} packages {verb} {package}"
        if sys.stderr.isatty():
            _say(f"\r\033[K{text[:78]}")
        elif count % 20 == 0 or count == self._total:
            _say(text.rstrip() + "\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
