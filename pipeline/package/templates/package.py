#!/usr/bin/env python3
"""The commands of this package, and the way to its code, which is the wheel beside this file.

    ./package.py predict -i NAME=VALUE    ask once; --help lists the inputs
    ./package.py serve                    Cog's server with the playground and more HTTP APIs
    ./package.py COMMAND --help           also: batch, keys, precompute, push, lock_weights, write_schema

predict.py imports this file, so that the code is found in Cog's image too. At the first start the wheel is unpacked
into .code/ beside it, or where nothing can be written there, into a temporary folder. To get a newer version of the
code, run `scripts/upgrade_package FOLDER` in a clone of the project that made this package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def unpacked() -> Path:
    """The folder of the code. Exits if there is not exactly one wheel."""
    wheels = sorted(FOLDER.glob("$wheel"))
    if len(wheels) != 1:
        sys.exit(f"{FOLDER} has {len(wheels)} files $wheel; keep the one that you want")
    target = FOLDER / ".code" / hashlib.sha256(wheels[0].read_bytes()).hexdigest()[:16]
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    except OSError:
        partial = target = Path(tempfile.mkdtemp(prefix="code-"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(partial)
    if partial != target:
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:
            shutil.rmtree(partial)
            if not target.is_dir():  # otherwise another process was first
                raise
    return target


CODE = unpacked()
os.environ["PACKAGE_FOLDER"] = str(FOLDER)
sys.path.insert(0, str(CODE))

if __name__ == "__main__":
    command = CODE / "scripts" / (sys.argv[1] if len(sys.argv) > 1 else "--help")
    if command.suffix or not command.is_file():
        print((__doc__ or "").strip())
        sys.exit(0 if command.name in ("--help", "-h") else 2)
    os.execv(sys.executable, [sys.executable, str(command), *sys.argv[2:]])
