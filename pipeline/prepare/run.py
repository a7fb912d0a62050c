"""Prepares a checkpoint from a base and an adapter: runs the steps, skips those that are done, and puts it in place.

The work is done in a folder beside the checkpoint, by one process at a time, and goes on where it was stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.environment.waiting_lock import take_lock
from pipeline.package.new_package import check_name
from pipeline.prepare.child_process import run_measured
from pipeline.prepare.errors import PrepareError, PrepareRefusedError
from pipeline.prepare.options import (
    DRAFTER,
    DRAFTER_CASES,
    PrepareOptions,
    base_is_quantized,
    can_quantize,
    check_options,
    count_cases,
    is_quantized,
)
from pipeline.prepare.record import (
    FileRecord,
    PrepareRecord,
    PrepareState,
    SourceRecord,
    StepRecord,
    StepState,
    are_whole,
    draft_record_path,
    read_record,
    written_files,
)
from pipeline.prepare.steps import Step, fetch_steps, last_steps, later_steps, lock_path
from pipeline.weights.atomic import replace_folder
from pipeline.weights.bases import BASES
from pipeline.weights.console import say
from pipeline.weights.cpu_name import cpu_name

_MARGIN = 256 << 20  # bytes that stay free on the disk


def prepare(options: PrepareOptions, *, keep: bool = False, replace: bool = False) -> PrepareRecord:
    """Do all steps that are not done yet, and put the checkpoint at `options.out` with one rename.

    Args:
        keep: whether fetched, merged and quantized folders stay in the work folder.
        replace: whether another checkpoint at `options.out` may be replaced.

    Raises:
        PrepareError: options cannot work, a step failed, or the disk is too small.
        CheckpointError: a source cannot be used.
        KeyboardInterrupt: somebody interrupted it.
    """
    _check(options)
    out, made_from = options.out, options.fingerprint()
    with _alone_in(work_path(out)) as lock:
        record = _finished(out, made_from)
        if record is not None:
            say(f"{out} is there and made from the same; nothing to do")
        elif out.exists() and not replace:
            raise PrepareError(f"{out} exists and was not made with these options; give another --out, or --force")
        else:
            run = _Run(options, work_path(out), lock)
            steps, files = run.run()
            # Names are below the checkpoint, not below the work folder.
            record = _record(options, made_from, steps, {name.partition("/")[2]: file for name, file in files.items()})
            (work_path(out) / lock_path(out).name).replace(lock_path(out))
            _replace(draft_record_path(work_path(out) / out.name), draft_record_path(out))
            record.write(out)
            replace_folder(work_path(out) / out.name, out)
        if not keep:
            shutil.rmtree(work_path(out))
    return record


def planned(options: PrepareOptions) -> list[Step]:
    """The steps as far as they are known before anything is fetched.

    Raises:
        PrepareError: options cannot work.
        CheckpointError: a source cannot be used.
    """
    quantized = _check(options)
    work = work_path(options.out)
    steps, ways = later_steps(options, work, quantized=_guess(options, quantized))
    return [*fetch_steps(options, work), *steps, *ways[0].steps, *last_steps(options, work, ways[0].placing)]


def _check(options: PrepareOptions) -> bool | None:
    """Whether the base is quantized, as far as known."""
    check_name(options.out.name)
    quantized = base_is_quantized(options)
    check_options(options, quantized=quantized)
    return quantized


def _guess(options: PrepareOptions, quantized: bool | None) -> bool:
    """Whether the base is quantized; one that is not known yet and has no texts for a search can only be quantized."""
    return (options.quantize and not can_quantize(options)) if quantized is None else quantized


class _Run:
    """One run of the steps in a work folder, of which there is only one at a time.

    Args:
        lock: a file descriptor that holds the folder's lock; the commands inherit it.
    """

    def __init__(self, options: PrepareOptions, folder: Path, lock: int) -> None:
        self._options = options
        self._folder = folder
        self._lock = lock
        self._state = PrepareState(folder)
        self._done: dict[str, StepState] = {}

    def run(self) -> tuple[list[StepRecord], dict[str, FileRecord]]:
        """Do what is not done yet; returns what each step cost, in order, and the checkpoint's files by their path.

        Raises:
            PrepareError: a step failed, or the comparison refuses the checkpoint; what was done stays.
            CheckpointError: the fetched base cannot be used.
            KeyboardInterrupt: somebody interrupted it.
        """
        fetching = fetch_steps(self._options, self._folder)
        guess = _guess(self._options, base_is_quantized(self._options))
        steps, ways = later_steps(self._options, self._folder, quantized=guess)
        last = len(last_steps(self._options, self._folder, ways[0].placing))
        expected = len(fetching) + len(steps) + len(ways[0].steps) + last
        _check_space(self._folder, fetching)
        records = [self._step(step, number, expected) for number, step in enumerate(fetching, 1)]
        quantized = is_quantized(self._folder / "base")
        check_options(self._options, quantized=quantized)
        base_bytes = sum(file.size for file in self._done["fetch-base"].files.values())
        steps, ways = later_steps(self._options, self._folder, quantized=quantized, base_bytes=base_bytes)
        _check_space(self._folder, [*steps, *ways[0].steps])
        total = len(fetching) + len(steps) + len(ways[0].steps) + last
        records += [self._step(step, number, total) for number, step in enumerate(steps, len(records) + 1)]
        for number, way in enumerate(ways):
            if number > 0:
                say(f"The comparison refuses this one. {way.about}")
                total += len(way.steps)
                _check_space(self._folder, way.steps)
            records += [self._step(step, place, total) for place, step in enumerate(way.steps, len(records) + 1)]
            if not self._is_refused(way.steps[-1]):
                break
        else:
            raise PrepareRefusedError(
                "the comparison refuses the checkpoint; what it lost is above. --limit-score and its like accept that, "
                f"or --unquantized serves the weights as they are. Its command:\n  {way.steps[-1].shown()}"
            )
        place = way.placing
        if 0 < (count := count_cases(self._options)) < DRAFTER_CASES:
            say(
                f"{count} cases are too few for a draft model, which needs {DRAFTER_CASES} inputs: answers take more "
                "passes of the model. With more inputs, scripts/train_drafter makes one later"
            )
        ending = last_steps(self._options, self._folder, place)
        records += [self._step(step, number, total) for number, step in enumerate(ending, len(records) + 1)]
        drafts = self._done[DRAFTER].files if DRAFTER in self._done else {}
        inside = f"{self._options.out.name}/"
        return records, self._done[place].files | {n: file for n, file in drafts.items() if n.startswith(inside)}

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
                    _remove(left)
        if step.report is not None:
            _remove(step.report)
        self._state.begin(step.name, fingerprint)
        say(f"{title}: {step.shown()}")
        code, cost = run_measured(step.argv(), self._lock)
        report = step.read_report()
        if code == 1 and step.is_optional:
            say(f"The step {step.name} failed; what it said is above. The checkpoint is made without it")
        elif code != 0 and not (step.may_refuse and code == 1 and report is not None):
            raise PrepareError(
                f"the step {step.name} failed with exit code {code}; what it said is above. Run this command again to "
                f"go on from here, or repeat the step alone:\n  {step.shown()}"
            )
        files = self._written(step)
        record = StepRecord(
            name=step.name,
            command=step.words(),
            **asdict(cost),
            bytes_written=sum(file.size for file in files.values()),
            files_written=len(files),
            report=report,
        )
        return self._state.finish(step.name, files, record)

    def _written(self, step: Step) -> dict[str, FileRecord]:
        files = written_files(step.writes, self._folder)
        if step.writes and not files and not step.is_optional:
            raise PrepareError(f"the step {step.name} succeeded and wrote nothing:\n  {step.shown()}")
        return files


def _finished(out: Path, made_from: str) -> PrepareRecord | None:
    record = read_record(out)
    if record is None or record.made_from != made_from or not out.is_dir():
        return None
    return record if are_whole(record.files, out) else None


def _record(
    options: PrepareOptions, made_from: str, steps: Sequence[StepRecord], files: dict[str, FileRecord]
) -> PrepareRecord:
    work = work_path(options.out)
    return PrepareRecord(
        name=options.out.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        made_from=made_from,
        machine=_machine(),
        task=json.loads((work / options.out.name / "task.json").read_bytes())["task"],
        base=_source(options.base, work / "base"),
        adapter=None if options.adapter is None else _source(options.adapter, work / "adapter"),
        options=options.described(),
        steps=tuple(steps),
        comparison=next((step.report for step in reversed(steps) if step.name.startswith("compare")), None),
        files=files,
        size=sum(file.size for file in files.values()),
    )


def _source(source: str, folder: Path) -> SourceRecord:
    if source in BASES:
        return SourceRecord(source=source, files={BASES[source].file_name: BASES[source].sha256})
    return SourceRecord.model_validate_json((folder / "source.json").read_bytes())


def _machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def work_path(checkpoint: Path) -> Path:
    """Where the work for a checkpoint is done: on the same disk, so that the end is a rename."""
    older = checkpoint.with_name(f".{checkpoint.name}.road")  # its name before; what was begun there goes on there
    return older if older.is_dir() else checkpoint.with_name(f".{checkpoint.name}.prepare")


@contextmanager
def _alone_in(folder: Path) -> Iterator[int]:
    """Make the work folder and hold its lock, waiting while another process has it.

    Yields:
        The file descriptor of the lock. A command that inherits it keeps the lock, so that a new run waits for what
        a killed one has left running.
    """
    path = folder / "lock"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            take_lock(file.fileno(), f"Waiting for another process that works in {folder}")
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file.fileno()
                return
        # The other process finished and removed its folder, with this file in it.


def _check_space(folder: Path, steps: Iterable[Step]) -> None:
    """Check the free space before steps run. What a step has written already is not needed again.

    Raises:
        PrepareError: the disk is too small.
    """
    missing = {step.name: space for step in steps if (space := step.space - sum(map(_size, step.writes))) > 0}
    free = shutil.disk_usage(folder).free
    if missing and (total := sum(missing.values())) + _MARGIN > free:
        listed = ", ".join(f"{name} {space:,}" for name, space in missing.items())
        raise PrepareError(
            f"about {total:,} bytes will be written below {folder.parent} ({listed}), {_MARGIN:,} should stay free, "
            f"and {free:,} are free there; make room, or give an --out on another disk"
        )


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _replace(made: Path, place: Path) -> None:
    """Move a file that may not have been made; then one of an earlier checkpoint there is removed."""
    if made.is_file():
        made.replace(place)
    else:
        place.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
