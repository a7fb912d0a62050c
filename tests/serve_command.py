"""scripts/serve as a process, with small weights."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.cog.tiny_weights import make_tiny_weights

ROOT = Path(__file__).resolve().parents[1]


class Serve:
    """The command, and what it prints on stderr."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        settings = make_tiny_weights(folder)
        command = [sys.executable, str(ROOT / "scripts" / "serve"), *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **settings, **env}, stderr=subprocess.PIPE, text=True
        )
        self.said = ""
        self._says = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_for(self, text: str) -> None:
        with self._says:
            assert self._says.wait_for(lambda: text in self.said, timeout=120), self.said

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._says:
                self.said += line
                self._says.notify_all()

    def end(self) -> None:
        """End it if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        if self.process.stderr is not None:
            self.process.stderr.close()
