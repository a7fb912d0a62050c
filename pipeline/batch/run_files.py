"""The input and the output of a run on this machine: as given, or as copies of what is on s3:// and gs://."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pipeline.batch.answer_journal import journal_of
from pipeline.batch.errors import BatchError
from pipeline.batch.table import ENDINGS
from pipeline.environment.enter import installed_environment
from pipeline.paths import ENVIRONMENT, ROOT
from pipeline.weights.console import say

_COPIES: Final = ROOT / "build" / "batch"
_SCHEMES: Final = ("s3", "gs")


class RunFiles:
    """The files of a run.

    Args:
        data: the input: a path, s3://BUCKET/KEY or gs://BUCKET/KEY.
        out: the output, likewise.

    Raises:
        BatchError: an address has another form.
    """

    def __init__(self, data: str, out: str) -> None:
        self._data, self._out = data, out
        own = _COPIES / _digest(out if _is_remote(out) else str(Path(out).resolve()))
        self._own = own if _is_remote(data) or _is_remote(out) else None
        self.out = own / _name(out) if _is_remote(out) else Path(out).resolve()
        self.data = own / _digest(data) if _is_remote(data) else Path(data).resolve()

    def fetch(self) -> None:
        """Copy the input here, if it is elsewhere.

        Raises:
            BatchError: it cannot be read, or there is an output that is not of a run that can continue.
        """
        if _is_remote(self._out) and not journal_of(self.out).exists():
            self.out.unlink(missing_ok=True)  # of a run that was complete
            if _run("exists", self._out).strip() == "yes":
                raise BatchError(f"{self._out} exists; delete it, or give another --out")
        if _is_remote(self._data):
            say(f"Fetching {self._data}")
            _run("get", self._data, str(self.data), *ENDINGS)

    def publish(self) -> None:
        """Copy the output to its place, if that is elsewhere.

        Raises:
            BatchError: it cannot be written there; the run can continue.
        """
        if _is_remote(self._out):
            say(f"Writing {self._out}")
            try:
                _run("put", str(self.out), self._out)
            except BatchError as error:
                raise BatchError(f"{error}\nAll answers are kept: repeat the command to write them") from error

    def remove_copies(self) -> None:
        """Delete the copies, after the run is complete."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def _is_remote(place: str) -> bool:
    scheme, separator, rest = place.partition("://")
    if not separator:
        return False
    bucket = rest.partition("/")[0]
    if scheme not in _SCHEMES or not bucket or "?" in rest:
        raise BatchError(f"{place}: unknown address; give a path, s3://BUCKET/KEY or gs://BUCKET/KEY")
    return True


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _digest(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:16]


def _run(*arguments: str) -> str:
    """The output of the program that copies, which has its own environment, so that every engine's can stay as it is.

    Raises:
        BatchError: it failed.
    """
    python = installed_environment("storage") / "bin" / "python"
    command = [str(python), "-m", "pipeline.batch.storage_program", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise BatchError(done.stderr.strip() or f"{arguments[0]} {arguments[1]}: ended with {done.returncode}")
    return done.stdout
