"""Keeps the answers of a run in a file beside its output, so that a run that was killed can continue.

The first line identifies the run. Each further line is one answer; a line that was not written to its end is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from pipeline.batch.errors import BatchError
from pipeline.batch.json_lines import to_line
from pipeline.batch.rows import RowAnswer


def journal_of(output: Path) -> Path:
    """The file of an output's answers so far."""
    return output.with_name(f"{output.name}.progress.jsonl")


class AnswerJournal:
    """The answers so far; only one process at a time can have it open.

    Args:
        path: of the file; made if there is none.
        identity: what must be the same when the run continues, by name.

    Raises:
        BatchError: another process has it open, or it belongs to another run.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self._places: dict[int, int] = {}  # where in the file the answer of a row is
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("a+b")
        try:
            self._lock()
            self._read(json.loads(json.dumps(identity)))
        except BaseException:
            self._file.close()
            raise

    def __contains__(self, number: int) -> bool:
        """Whether a row has its answer."""
        return number in self._places

    def __len__(self) -> int:
        """Number of rows that have their answer."""
        return len(self._places)

    def add(self, answer: RowAnswer) -> None:
        """Write an answer; it outlives this process, though not a failure of the machine's power."""
        assert answer.number not in self._places, "a row is answered once"
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(to_line(asdict(answer)))
        self._file.flush()
        self._places[answer.number] = place

    def get(self, number: int) -> RowAnswer | None:
        """The answer of a row, if it has one."""
        place = self._places.get(number)
        if place is None:
            return None
        self._file.seek(place)
        return RowAnswer(**json.loads(self._file.readline()))

    def remove(self) -> None:
        """Delete the file, after the output has been written."""
        self.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file, which releases its lock."""
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(f"another process writes {self.path}; wait for it, or give another --out") from error

    def _read(self, identity: dict[str, Any]) -> None:
        """Find all answers and cut off a last line that is incomplete."""
        self._file.seek(0)
        end = 0
        while (line := self._file.readline()).endswith(b"\n"):
            if end:
                self._places[json.loads(line)["number"]] = end
            else:
                self._check(json.loads(line), identity)
            end = self._file.tell()
        self._file.truncate(end)
        if not end:
            self._file.write(to_line(identity))
            self._file.flush()

    def _check(self, found: dict[str, Any], identity: dict[str, Any]) -> None:
        for name in sorted(found.keys() | identity.keys()):
            if found.get(name) != identity.get(name):
                raise BatchError(
                    f"{self.path} has answers of a run with another {name}; repeat that run's command, delete the "
                    "file, or give another --out"
                )
