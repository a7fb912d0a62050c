"""The steps of a road, in order: fetch, merge, task file, quantize, place, gate, lock."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.road.road_options import RoadOptions, local_folder
from pipeline.road.road_step import Step
from pipeline.weights.bases import BASES

QUANTIZED_SHARE = 0.45  # of the unquantized bytes, at most: 4 of 16 bits and the embedding as it is


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Where the steps leave what they make."""

    root: Path

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def argument(self, name: str) -> str:
        """A path in it for a command line."""
        return str(self.root / name)


def lock_path(checkpoint: Path) -> Path:
    """Where the lock of a checkpoint is: beside it, because a lock has all files of the folder."""
    return checkpoint.with_name(f"{checkpoint.name}.lock")


def fetch_steps(options: RoadOptions, work: WorkFolder) -> list[Step]:
    """Bring the base and the adapter into the work folder."""
    steps = [_fetch("fetch-base", options.base, work / "base")]
    if options.adapter is not None:
        steps.append(_fetch("fetch-adapter", options.adapter, work / "adapter"))
    return steps


def later_steps(options: RoadOptions, work: WorkFolder, *, quantized: bool, base_bytes: int = 0) -> list[Step]:
    """What follows when base and adapter are there.

    Args:
        options: of the user.
        work: the work folder.
        quantized: whether the base is quantized already.
        base_bytes: size of the base; 0 where it is not known yet.
    """
    steps: list[Step] = []
    model, made_by = "base", "fetch-base"
    if options.adapter is not None:
        steps.append(_merge(options, work, base_bytes))
        model, made_by = "merged", "merge"
    task_file = work / model / "task.json"
    steps.append(
        Step(
            "task",
            ("write_task", work.argument(model), *_task_arguments(options), "--name", options.out.name),
            writes=(task_file,),
            needs=(made_by,),
            reads=tuple(v for f in fields(options.choice) if isinstance(v := getattr(options.choice, f.name), Path)),
        )
    )
    served, served_by = model, made_by
    if options.quantize and not quantized:
        steps.append(_quantize(options, work, model, made_by, base_bytes))
        served, served_by = "quantized", "quantize"
    into = ("--into", work.argument(options.out.name), "--task-file", str(task_file), "--name", options.out.name)
    place = ("write_task", work.argument(served), *into)
    steps.append(Step("place", place, writes=(work / options.out.name,), needs=(served_by, "task")))
    if served == "quantized":
        steps.append(_gate(options, work, model, made_by))
    steps.append(_lock(options, work))
    return steps


def _fetch(name: str, source: str, folder: Path) -> Step:
    if source in BASES:
        command: tuple[str, ...] = ("build_base", source, str(folder), "--unquantized")
        return Step(name, command, writes=(folder,), space=5 * BASES[source].size)
    local = local_folder(source)
    reads = () if local is None else (local,)
    return Step(name, ("fetch", str(local or source), str(folder)), writes=(folder,), reads=reads, continues=True)


def _merge(options: RoadOptions, work: WorkFolder, base_bytes: int) -> Step:
    folders = (work.argument("base"), work.argument("adapter"), work.argument("merged"))
    report = work / "merge.json"
    return Step(
        "merge",
        ("merge_lora", *folders, *options.merge_options, "--json", str(report)),
        writes=(work / "merged",),
        needs=("fetch-base", "fetch-adapter"),
        report=report,
        continues=True,
        space=base_bytes,
    )


def _quantize(options: RoadOptions, work: WorkFolder, model: str, made_by: str, base_bytes: int) -> Step:
    needs: tuple[str, ...] = (made_by,)
    if options.calibration is not None:
        texts: tuple[str, ...] = ("--calibration", str(options.calibration))
    else:
        texts, needs = ("--task-cases", str(options.cases)), (*needs, "task")
    report = work / "quantize.json"
    command = ("quantize_awq", work.argument(model), work.argument("quantized"), *texts, *options.quantize_options)
    return Step(
        "quantize",
        (*command, "--json", str(report)),
        writes=(work / "quantized",),
        needs=needs,
        reads=tuple(path for path in (options.calibration or options.cases,) if path is not None),
        report=report,
        continues=True,
        space=int(base_bytes * QUANTIZED_SHARE),
    )


def _gate(options: RoadOptions, work: WorkFolder, model: str, made_by: str) -> Step:
    report = work / "gate.json"
    if options.cases is not None:
        texts, read = "--task-cases", options.cases
    else:
        assert options.calibration is not None, "the search needed one of them"
        texts, read = "--calibration", options.calibration
    command = ("gate", work.argument(model), work.argument(options.out.name), texts, str(read), *options.gate_options)
    return Step(
        "gate",
        (*command, "--json", str(report)),
        writes=(),
        needs=(made_by, "task", "place"),
        reads=(read,),
        report=report,
    )


def _lock(options: RoadOptions, work: WorkFolder) -> Step:
    lock = work / lock_path(options.out).name
    command = ("lock_weights", work.argument(options.out.name), "--lock", str(lock))
    return Step("lock", command, writes=(lock,), needs=("place",))


def _task_arguments(options: RoadOptions) -> tuple[str, ...]:
    given = {f"--{f.name.replace('_', '-')}": getattr(options.choice, f.name) for f in fields(options.choice)}
    return tuple(word for name, value in given.items() if value is not None for word in (name, str(value)))
