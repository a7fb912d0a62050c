"""What a road has done so far: a file in its work folder, replaced atomically after each change."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.prepare.output_files import are_whole
from pipeline.prepare.road_record import FileRecord, StepRecord
from pipeline.weights.atomic import write_text

_FILE = "state.json"


class StepState(BaseModel):
    """A step that was started.

    Args:
        fingerprint: of the step when it was started.
        starts: how often it was, with this fingerprint.
        files: that it left, by their path in the work folder.
        record: what it cost; None until it is finished.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: str
    starts: int
    files: dict[str, FileRecord] = {}
    record: StepRecord | None = None


class _States(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: int = 1
    steps: dict[str, StepState] = {}


class RoadState:
    """The state of one work folder. A file that cannot be read counts as none: all is done again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._states = _States.model_validate_json((folder / _FILE).read_bytes())
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
        before = self._states.steps.get(name)
        starts = before.starts if before is not None and before.fingerprint == fingerprint else 0
        self._states.steps[name] = StepState(fingerprint=fingerprint, starts=starts + 1)
        self._write()

    def finish(self, name: str, files: dict[str, FileRecord], record: StepRecord) -> StepState:
        """Note that the step that was begun is done."""
        begun = self._states.steps[name]
        done = begun.model_copy(update={"files": files, "record": record})
        self._states.steps[name] = done
        self._write()
        return done

    def _write(self) -> None:
        write_text(self._folder / _FILE, self._states.model_dump_json(indent=1) + "\n")
