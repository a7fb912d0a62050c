"""Keeps the answers of a run in a file beside its output, so that a run that was killed can continue.

The first line identifies the run. Each further line is one answer. A line that was not written to its end, or that is
damaged, is left out, so that its row is asked again.
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
from pipeline.batch.output import to_line
from pipeline.batch.rows import RowAnswer
from pipeline.weights.console import say


def journal_of(output: Path) -> Path:
    """The file of an output's answers so far."""
    return output.with_name(f"{output.name}.progress.jsonl")


class AnswerJournal:
    """The answers so far; only one process at a time can have it open.

    Args:
        path: the place of the file, which is made if there is none.
        identity: what must be the same when the run continues, by name.

    Raises:
        BatchError: another process has it open, it belongs to another run, or its first line is damaged.
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
        """Write an answer; it outlives this process, though not a failure of the machine's power.

        Raises:
            BatchError: the disk does not take it.
        """
        assert answer.number not in self._places, "a row is answered once"
        self._places[answer.number] = self._write(asdict(answer))

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
            found = _parsed(line)
            if not end:
                self._check(found, identity)
            elif (number := _row_number(found)) is not None:
                self._places[number] = end
            else:
                say(f"{self.path}: an answer is damaged; its row is asked again")
            end = self._file.tell()
        self._file.truncate(end)
        if not end:
            self._write(identity)

    def _write(self, content: dict[str, Any]) -> int:
        """Append a line; returns where it begins. It is written past Python's buffer, which would try it again."""
        place, rest = self._file.seek(0, os.SEEK_END), to_line(content)
        try:
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]
            return place
        except OSError as error:
            os.ftruncate(self._file.fileno(), place)
            raise BatchError(
                f"{self.path} cannot be written: {error.strerror}; make room, and run the same command again: it "
                f"continues after {len(self):,} answers"
            ) from error

    def _check(self, found: Any, identity: dict[str, Any]) -> None:
        if not isinstance(found, dict):
            raise BatchError(f"the first line of {self.path} is damaged; delete the file, or give another --out")
        for name in sorted(found.keys() | identity.keys()):
            if found.get(name) != identity.get(name):
                raise BatchError(
                    f"{self.path} has answers of a run with another {name}; repeat that run's command, delete the "
                    "file, or give another --out"
                )


def _parsed(line: bytes) -> Any:
    """What a line holds; None if it is damaged."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _row_number(found: Any) -> int | None:
    """The row of an answer; None if it is no whole answer."""
    try:
        number = RowAnswer(**found).number
    except TypeError:
        return None
    return number if isinstance(number, int) else None
