"""From a base and an adapter to a checkpoint that can be served: the whole road, resumed where it was stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.package.new_package import check_name
from pipeline.prepare.errors import RoadError
from pipeline.prepare.output_files import are_whole
from pipeline.prepare.road_options import RoadOptions, base_is_quantized, check_options, has_texts
from pipeline.prepare.road_plan import WorkFolder, fetch_steps, later_steps, lock_path, lock_step, placing
from pipeline.prepare.road_record import FileRecord, RoadRecord, SourceRecord, StepRecord, read_record, record_path
from pipeline.prepare.road_step import Step
from pipeline.prepare.run_road import RoadRun
from pipeline.prepare.work_folder import alone_in, work_path
from pipeline.weights.atomic import replace_folder
from pipeline.weights.bases import BASES
from pipeline.weights.console import say
from pipeline.weights.cpu_name import cpu_name


def prepare(options: RoadOptions, *, keep: bool = False, replace: bool = False) -> RoadRecord:
    """Do all steps that are not done yet, and put the checkpoint at `options.out` with one rename.

    Args:
        options: of the user.
        keep: whether fetched, merged and quantized folders stay in the work folder.
        replace: whether another checkpoint at `options.out` may be replaced.

    Raises:
        RoadError: options cannot work, a step failed, or the disk is too small.
        CheckpointError: a source cannot be used.
        RoadStopped: somebody interrupted it.
    """
    _check(options)
    out, made_from = options.out, options.fingerprint()
    with alone_in(work_path(out)) as lock:
        record = _finished(out, made_from)
        if record is not None:
            say(f"{out} is there and made from the same; nothing to do")
        elif out.exists() and not replace:
            raise RoadError(f"{out} exists and was not made with these options; give another --out, or --force")
        else:
            run = RoadRun(options, work_path(out), lock)
            steps, files = run.run()
            record = _record(options, made_from, steps, {_below_first(name): file for name, file in files.items()})
            (work_path(out) / lock_path(out).name).replace(lock_path(out))
            record.write(record_path(out))
            replace_folder(work_path(out) / out.name, out)
        if not keep:
            shutil.rmtree(work_path(out))
    return record


def planned(options: RoadOptions) -> list[Step]:
    """The steps as far as they are known before anything is fetched.

    Raises:
        RoadError: options cannot work.
        CheckpointError: a source cannot be used.
    """
    quantized = _check(options)
    if quantized is None:
        quantized = options.quantize and not has_texts(options)  # else it could not be done
    work = WorkFolder(work_path(options.out))
    steps, ways = later_steps(options, work, quantized=quantized)
    return [*fetch_steps(options, work), *steps, *ways[0], lock_step(options, work, placing(ways[0]))]


def _check(options: RoadOptions) -> bool | None:
    """Whether the base is quantized, as far as known."""
    check_name(options.out.name)
    quantized = base_is_quantized(options)
    check_options(options, quantized=quantized)
    return quantized


def _finished(out: Path, made_from: str) -> RoadRecord | None:
    record = read_record(out)
    if record is None or record.made_from != made_from or not out.is_dir():
        return None
    return record if are_whole(record.files, out) else None


def _below_first(path: str) -> str:
    return path.partition("/")[2]


def _record(
    options: RoadOptions, made_from: str, steps: Sequence[StepRecord], files: dict[str, FileRecord]
) -> RoadRecord:
    work = work_path(options.out)
    return RoadRecord(
        name=options.out.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        made_from=made_from,
        machine=_machine(),
        task=json.loads((work / options.out.name / "task.json").read_bytes())["task"],
        base=_source(options.base, work / "base"),
        adapter=None if options.adapter is None else _source(options.adapter, work / "adapter"),
        options=options.described(),
        steps=tuple(steps),
        gate=next((step.report for step in reversed(steps) if step.name.startswith("gate")), None),
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
