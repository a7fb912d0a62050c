"""Runs the steps of a road, skips those that are done, and puts the finished checkpoint in its place."""

from __future__ import annotations

from pathlib import Path

from pipeline.road.child_process import run_measured
from pipeline.road.disk_space import check_space
from pipeline.road.errors import RoadError
from pipeline.road.output_files import remove, written_files
from pipeline.road.road_options import RoadOptions, base_is_quantized, check_options, is_quantized
from pipeline.road.road_plan import WorkFolder, fetch_steps, later_steps
from pipeline.road.road_record import FileRecord, StepRecord
from pipeline.road.road_state import RoadState, StepState
from pipeline.road.road_step import Step
from pipeline.weights.console import say


class RoadRun:
    """One run of a road in its work folder, of which there is only one at a time.

    Args:
        options: of the user.
        folder: the work folder.
        lock: a file descriptor that holds the folder's lock; the commands inherit it.
    """

    def __init__(self, options: RoadOptions, folder: Path, lock: int) -> None:
        self._options = options
        self._folder = folder
        self._work = WorkFolder(folder)
        self._lock = lock
        self._state = RoadState(folder)
        self.done: dict[str, StepState] = {}

    def run(self) -> list[StepRecord]:
        """Do what is not done yet; what each step cost, in order.

        Raises:
            RoadError: a step failed; what was done stays.
            CheckpointError: the fetched base cannot be used.
            RoadStopped: somebody interrupted it.
        """
        fetching = fetch_steps(self._options, self._work)
        guess = bool(base_is_quantized(self._options))
        expected = len(fetching) + len(later_steps(self._options, self._work, quantized=guess))
        check_space(self._folder, fetching)
        records = [self._step(step, number, expected) for number, step in enumerate(fetching, 1)]
        quantized = is_quantized(self._folder / "base")
        check_options(self._options, quantized=quantized)
        base_bytes = sum(file.size for file in self.done["fetch-base"].files.values())
        rest = later_steps(self._options, self._work, quantized=quantized, base_bytes=base_bytes)
        check_space(self._folder, rest)
        total = len(fetching) + len(rest)
        return records + [self._step(step, number, total) for number, step in enumerate(rest, len(fetching) + 1)]

    def _step(self, step: Step, number: int, total: int) -> StepRecord:
        outputs = {name: state.files for name, state in self.done.items()}
        fingerprint = step.fingerprint(outputs)
        title = f"[{number}/{total}] {step.name}"
        state = self._state.finished(step.name, fingerprint)
        if state is not None and state.record is not None:
            say(f"{title}: done before")
        else:
            state = self._run(step, fingerprint, title)
        self.done[step.name] = state
        assert state.record is not None
        return state.record

    def _run(self, step: Step, fingerprint: str, title: str) -> StepState:
        if not (step.continues and self._state.was_begun(step.name, fingerprint)):
            for path in step.writes:
                for left in (path, *path.parent.glob(f".{path.name}.*")):  # and what commands put aside to go on with
                    remove(left)
        if step.report is not None:
            remove(step.report)
        self._state.begin(step.name, fingerprint)
        say(f"{title}: {step.shown()}")
        code, cost = run_measured(step.argv(), self._lock)
        if code != 0:
            raise RoadError(
                f"the step {step.name} failed with exit code {code}; what it said is above. Run this command again to "
                f"go on from here, or repeat the step alone:\n  {step.shown()}"
            )
        files = self._written(step)
        record = StepRecord(
            name=step.name,
            command=step.words(),
            wall_seconds=cost.wall_seconds,
            processor_seconds=cost.processor_seconds,
            peak_memory_bytes=cost.peak_memory_bytes,
            bytes_written=sum(file.size for file in files.values()),
            files_written=len(files),
            report=step.read_report(),
        )
        return self._state.finish(step.name, files, record)

    def _written(self, step: Step) -> dict[str, FileRecord]:
        files = written_files(step.writes, self._folder)
        if step.writes and not files:
            raise RoadError(f"the step {step.name} succeeded and wrote nothing:\n  {step.shown()}")
        return files
