"""Runs the steps of a road, skips those that are done, and puts the finished checkpoint in its place."""

from __future__ import annotations

from pathlib import Path

from pipeline.prepare.child_process import run_measured
from pipeline.prepare.disk_space import check_space
from pipeline.prepare.errors import RoadError
from pipeline.prepare.output_files import remove, written_files
from pipeline.prepare.road_options import RoadOptions, base_is_quantized, check_options, is_quantized
from pipeline.prepare.road_plan import WorkFolder, fetch_steps, later_steps, lock_step, placing
from pipeline.prepare.road_record import FileRecord, StepRecord
from pipeline.prepare.road_state import RoadState, StepState
from pipeline.prepare.road_step import Step
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
        self._done: dict[str, StepState] = {}

    def run(self) -> tuple[list[StepRecord], dict[str, FileRecord]]:
        """Do what is not done yet; what each step cost, in order, and the checkpoint's files by their path.

        Raises:
            RoadError: a step failed; what was done stays.
            CheckpointError: the fetched base cannot be used.
            RoadStopped: somebody interrupted it.
        """
        fetching = fetch_steps(self._options, self._work)
        guess = bool(base_is_quantized(self._options))
        steps, ways = later_steps(self._options, self._work, quantized=guess)
        expected = len(fetching) + len(steps) + len(ways[0]) + 1
        check_space(self._folder, fetching)
        records = [self._step(step, number, expected) for number, step in enumerate(fetching, 1)]
        quantized = is_quantized(self._folder / "base")
        check_options(self._options, quantized=quantized)
        base_bytes = sum(file.size for file in self._done["fetch-base"].files.values())
        steps, ways = later_steps(self._options, self._work, quantized=quantized, base_bytes=base_bytes)
        check_space(self._folder, [*steps, *ways[0]])
        total = len(fetching) + len(steps) + len(ways[0]) + 1
        records += [self._step(step, number, total) for number, step in enumerate(steps, len(records) + 1)]
        for number, way in enumerate(ways):
            if number > 0:
                say("The gate refuses this one. Trying smaller groups and more texts for the search")
                total += len(way)
                check_space(self._folder, way)
            records += [self._step(step, place, total) for place, step in enumerate(way, len(records) + 1)]
            if not self._is_refused(way[-1]):
                break
        else:
            raise RoadError(
                f"the gate refuses the checkpoint; what it lost is above. --limit-score and its like accept that, or "
                f"--unquantized serves the weights as they are. Its command:\n  {ways[-1][-1].shown()}"
            )
        place = placing(way)
        records.append(self._step(lock_step(self._options, self._work, place), total, total))
        return records, self._done[place].files

    def _is_refused(self, step: Step) -> bool:
        record = self._done[step.name].record
        return step.may_refuse and record is not None and record.report is not None and not record.report["passed"]

    def _step(self, step: Step, number: int, total: int) -> StepRecord:
        outputs = {name: state.files for name, state in self._done.items()}
        fingerprint = step.fingerprint(outputs)
        title = f"[{number}/{total}] {step.name}"
        state = self._state.finished(step.name, fingerprint)
        if state is not None and state.record is not None:
            say(f"{title}: done before")
        else:
            state = self._run(step, fingerprint, title)
        self._done[step.name] = state
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
        report = step.read_report()
        if code != 0 and not (step.may_refuse and code == 1 and report is not None):
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
            report=report,
        )
        return self._state.finish(step.name, files, record)

    def _written(self, step: Step) -> dict[str, FileRecord]:
        files = written_files(step.writes, self._folder)
        if step.writes and not files:
            raise RoadError(f"the step {step.name} succeeded and wrote nothing:\n  {step.shown()}")
        return files
