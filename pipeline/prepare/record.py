"""What is kept of the steps: their files and costs while they run, and the record of a finished checkpoint.

The state is in the work folder. The record is weights/NAME.prepare.json beside the checkpoint, outside the locked
folder; before it had that name it was NAME.road.json, which is still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from pipeline.prepare.errors import PrepareError
from pipeline.weights.atomic import write_text
from pipeline.weights.digest import sha256 as file_sha256

DRAFT_RUN: Final = "draft-run.json"  # how a draft model was trained
_STATE = "state.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


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
        command: the command that did it, with its arguments.
        wall_seconds: the time from its start to its end.
        processor_seconds: the processor time of all its processes together.
        peak_memory_bytes: the resident memory of its largest process.
        bytes_written: the size of the files that it left.
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


class PrepareRecord(_Part):
    """How a checkpoint was made.

    Args:
        made: the time when it was finished, in UTC.
        made_from: a digest of all options and of the user's files.
        machine: processor, cores and memory.
        task: the task that the checkpoint's task.json names.
        adapter: the adapter's source; None without one.
        options: what the user chose, by the names of the command's options.
        steps: the steps in the order in which they ran.
        comparison: the comparison's figures (`gate` in older records); None where nothing was quantized.
        files: the checkpoint's files by path.
        size: the size of these files together, in bytes.
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
    comparison: dict[str, Any] | None = Field(validation_alias=AliasChoices("comparison", "gate"))
    files: dict[str, FileRecord]
    size: int

    def write(self, checkpoint: Path) -> None:
        """Write it atomically beside its checkpoint, in the place of an older one."""
        write_text(record_path(checkpoint), self.model_dump_json(indent=2) + "\n")
        _older_path(checkpoint).unlink(missing_ok=True)


def record_path(checkpoint: Path) -> Path:
    """Where the record of a checkpoint is written."""
    return checkpoint.with_name(f"{checkpoint.name}.prepare.json")


def draft_record_path(checkpoint: Path) -> Path:
    """Where the record of the training of a checkpoint's draft model is written."""
    return checkpoint.with_name(f"{checkpoint.name}.{DRAFT_RUN}")


def find_record(checkpoint: Path) -> Path | None:
    """The file that has the record of a checkpoint; None where there is none."""
    return next((path for path in (record_path(checkpoint), _older_path(checkpoint)) if path.is_file()), None)


def read_record(checkpoint: Path) -> PrepareRecord | None:
    """The record of a checkpoint; None where scripts/prepare did not make it.

    Raises:
        PrepareError: the file holds something else.
    """
    path = find_record(checkpoint)
    if path is None:
        return None
    try:
        return PrepareRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise PrepareError(f"{path} is no record of scripts/prepare: {error.errors()[0]['msg']}; remove it") from error


class StepState(BaseModel):
    """A step that was started.

    Args:
        fingerprint: the step's fingerprint when it was started.
        files: the files that it left, by their path in the work folder.
        record: what it cost; None until it is finished.
    """

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    files: dict[str, FileRecord] = {}
    record: StepRecord | None = None


class _States(BaseModel):
    version: int = 1
    steps: dict[str, StepState] = {}


class PrepareState:
    """What has been done in one work folder: a file in it that is replaced atomically after each change.

    A file that cannot be read counts as none, so that all is done again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._states = _States.model_validate_json((folder / _STATE).read_bytes())
        except (FileNotFoundError, ValidationError):
            self._states = _States()

    def finished(self, name: str, fingerprint: str) -> StepState | None:
        """The step, if it is done with this fingerprint and its files are whole."""
        state = self._states.steps.get(name)
        if state is None or state.record is None or state.fingerprint != fingerprint:
            return None
        return state if are_whole(state.files, self._folder) else None

    def was_begun(self, name: str, fingerprint: str) -> bool:
        """Whether the last start of the step had this fingerprint and did not finish."""
        state = self._states.steps.get(name)
        return state is not None and state.record is None and state.fingerprint == fingerprint

    def begin(self, name: str, fingerprint: str) -> None:
        """Note that the step starts."""
        self._states.steps[name] = StepState(fingerprint=fingerprint)
        self._write()

    def finish(self, name: str, files: dict[str, FileRecord], record: StepRecord) -> StepState:
        """Note that the step that was begun is done."""
        done = self._states.steps[name].model_copy(update={"files": files, "record": record})
        self._states.steps[name] = done
        self._write()
        return done

    def _write(self) -> None:
        write_text(self._folder / _STATE, self._states.model_dump_json(indent=1) + "\n")


def written_files(paths: Iterable[Path], root: Path) -> dict[str, FileRecord]:
    """The size and digest of each file, and of each file in each folder, by its path below `root`."""
    return {
        str(file.relative_to(root)): FileRecord(size=file.stat().st_size, sha256=file_sha256(file))
        for path in paths
        for file in _files(path)
    }


def are_whole(files: dict[str, FileRecord], root: Path) -> bool:
    """Whether all files are there with their size and digest."""
    paths = {name: root / name for name in files}
    if not all(path.is_file() and path.stat().st_size == files[name].size for name, path in paths.items()):
        return False
    return all(file_sha256(path) == files[name].sha256 for name, path in paths.items())


def _files(path: Path) -> Iterator[Path]:
    """The file itself, or all files of the folder that a program did not put aside (.cache, .partial)."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield file


def _older_path(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.road.json")
