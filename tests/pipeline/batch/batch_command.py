"""scripts/batch as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class Command:
    """The command, in a folder of its own, with the Python of the tests, so that nothing is installed."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder, self._env = folder, {**os.environ, **settings}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "batch"), *arguments],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate()
        return process.returncode, output

    def write(self, name: str, *rows: dict[str, Any]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
