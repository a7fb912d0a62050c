"""The official JavaScript clients of the lock file in javascript/, installed with npm, which asks its registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

FOLDER = Path(__file__).with_name("javascript")


class JavascriptClients:
    """The clients in a folder of their own. Skips the test where they cannot be installed, or fails it if required.

    Args:
        folder: where they are installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, folder)
        npm = shutil.which("npm")
        if npm is None:
            _leave_out("npm is not installed")
        install = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
        installed = subprocess.run(install, capture_output=True, text=True, timeout=200)
        if installed.returncode != 0:
            _leave_out(f"npm cannot fetch the clients: {installed.stderr[-500:]}")

    def run(self, script: Path, *arguments: str) -> Any:
        """Run a script; what it prints, which is JSON."""
        return json.loads(self._node(shutil.copy(script, self._folder), *arguments))

    def run_code(self, code: str) -> str:
        """Run a module's text; what it prints."""
        path = self._folder / "code.mjs"
        path.write_text(code)
        return self._node(path)

    def _node(self, path: Path, *arguments: str) -> str:
        done = subprocess.run(["node", path, *arguments], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _leave_out(reason: str) -> NoReturn:
    pytest.fail(reason) if os.environ.get("REQUIRE_NPM") else pytest.skip(reason)
