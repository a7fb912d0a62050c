"""What a finished road says of itself: weights/NAME.road.json beside the checkpoint, outside the locked folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.prepare.errors import RoadError
from pipeline.weights.atomic import write_text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Part):
    """A file's size in bytes and its SHA-256 in hex."""

    size: int = Field(ge=0)
    sha256: str


class SourceRecord(_Part):
    """Where a base or adapter came from, as it can be fetched again, and the SHA-256 of its files by name."""

    source: str
    files: dict[str, str]


class StepRecord(_Part):
    """A finished step.

    Args:
        name: of the step.
        command: that did it, with its arguments.
        wall_seconds: from its start to its end.
        processor_seconds: of all its processes together.
        peak_memory_bytes: resident memory of its largest process.
        bytes_written: size of the files that it left.
        files_written: number of these.
        report: what the command said of its work with --json.
    """

    name: str
    command: tuple[str, ...]
    wall_seconds: float
    processor_seconds: float
    peak_memory_bytes: int
    bytes_written: int
    files_written: int
    report: dict[str, Any] | None = None


class RoadRecord(_Part):
    """The whole road.

    Args:
        version: of this format.
        name: of the checkpoint.
        made: when it was finished, in UTC.
        made_from: a digest of all options and of the user's files.
        machine: processor, cores and memory.
        task: of the checkpoint's task.json.
        base: the base model's source.
        adapter: the adapter's source; None without one.
        options: what the user chose, by the names of the command's options.
        steps: in the order in which they ran.
        gate: the gate's figures; None where nothing was quantized.
        files: of the checkpoint, by path.
        size: of these files together, in bytes.
    """

    version: Literal[1] = 1
    name: str
    made: str
    made_from: str
    machine: dict[str, Any]
    task: str
    base: SourceRecord
    adapter: SourceRecord | None
    options: dict[str, Any]
    steps: tuple[StepRecord, ...]
    gate: dict[str, Any] | None
    files: dict[str, FileRecord]
    size: int

    def write(self, path: Path) -> None:
        """Write it atomically."""
        write_text(path, self.model_dump_json(indent=2) + "\n")


def record_path(checkpoint: Path) -> Path:
    """Where the record of a checkpoint is."""
    return checkpoint.with_name(f"{checkpoint.name}.road.json")


def read_record(checkpoint: Path) -> RoadRecord | None:
    """The record of a checkpoint; None where scripts/prepare did not make it.

    Raises:
        RoadError: the file holds something else.
    """
    path = record_path(checkpoint)
    if not path.is_file():
        return None
    try:
        return RoadRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RoadError(f"{path} is no record of scripts/prepare: {error.errors()[0]['msg']}; remove it") from error
