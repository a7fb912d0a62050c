"""The steps of a road: fetch, merge, task file, then quantize, place and gate, again if the gate refuses, and lock."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.prepare.road_options import RoadOptions, local_folder
from pipeline.prepare.road_step import Step
from pipeline.weights.bases import BASES

QUANTIZED_SHARE = 0.45  # of the unquantized bytes, at most: 4 of 16 bits and the embedding as it is
# What is tried when the gate refuses: scales for 32 weights, which add half a bit a weight, found on more texts.
_CLOSER = {"--group-size": "32", "--max-tokens": "32768"}


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


def later_steps(
    options: RoadOptions, work: WorkFolder, *, quantized: bool, base_bytes: int = 0
) -> tuple[list[Step], list[list[Step]]]:
    """What follows when base and adapter are there.

    Args:
        options: of the user.
        work: the work folder.
        quantized: whether the base is quantized already.
        base_bytes: size of the base; 0 where it is not known yet.

    Returns:
        The first steps, and ways to go on to the checkpoint; those after the first are for when the gate refuses.
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
    if not options.quantize or quantized:
        return steps, [[_place(options, work, model, made_by, task_file, "")]]
    ways = []
    for suffix, arguments in _attempts(options):
        ways.append(
            [
                _quantize(options, work, model, made_by, base_bytes, suffix, arguments),
                _place(options, work, f"quantized{suffix}", f"quantize{suffix}", task_file, suffix),
                _gate(options, work, model, made_by, suffix),
            ]
        )
    return steps, ways


def _attempts(options: RoadOptions) -> list[tuple[str, tuple[str, ...]]]:
    """Ways to quantize, the smallest checkpoint first: what their names end with, and arguments. The user's stay."""
    given = options.quantize_options
    closer = tuple(word for name, value in _CLOSER.items() if name not in given for word in (name, value))
    return [("", given), *([("-closer", (*given, *closer))] if closer else [])]


def _place(options: RoadOptions, work: WorkFolder, model: str, made_by: str, task_file: Path, suffix: str) -> Step:
    into = ("--into", work.argument(options.out.name), "--task-file", str(task_file), "--name", options.out.name)
    command = ("write_task", work.argument(model), *into)
    return Step(f"place{suffix}", command, writes=(work / options.out.name,), needs=(made_by, "task"))


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


def _quantize(
    options: RoadOptions,
    work: WorkFolder,
    model: str,
    made_by: str,
    base_bytes: int,
    suffix: str,
    arguments: tuple[str, ...],
) -> Step:
    needs: tuple[str, ...] = (made_by,)
    if options.calibration is not None:
        texts: tuple[str, ...] = ("--calibration", str(options.calibration))
    else:
        texts, needs = ("--task-cases", str(options.cases)), (*needs, "task")
    output, report = f"quantized{suffix}", work / f"quantize{suffix}.json"
    command = ("quantize_awq", work.argument(model), work.argument(output), *texts, *arguments)
    return Step(
        f"quantize{suffix}",
        (*command, "--json", str(report)),
        writes=(work / output,),
        needs=needs,
        reads=tuple(path for path in (options.calibration or options.cases,) if path is not None),
        report=report,
        continues=True,
        space=int(base_bytes * QUANTIZED_SHARE),
    )


def _gate(options: RoadOptions, work: WorkFolder, model: str, made_by: str, suffix: str) -> Step:
    report = work / f"gate{suffix}.json"
    if options.cases is not None:
        texts, read = "--task-cases", options.cases
    else:
        assert options.calibration is not None, "the search needed one of them"
        texts, read = "--calibration", options.calibration
    command = (
        "compare",
        work.argument(model),
        work.argument(options.out.name),
        texts,
        str(read),
        *options.gate_options,
    )
    return Step(
        f"gate{suffix}",
        (*command, "--json", str(report)),
        writes=(),
        needs=(made_by, "task", f"place{suffix}"),
        reads=(read,),
        report=report,
        may_refuse=True,
    )


def placing(way: list[Step]) -> str:
    """The name of the step that puts the checkpoint in place."""
    return next(step.name for step in way if step.name.startswith("place"))


def lock_step(options: RoadOptions, work: WorkFolder, placed_by: str) -> Step:
    """Lock the checkpoint that the step `placed_by` put in place."""
    lock = work / lock_path(options.out).name
    command = ("lock_weights", work.argument(options.out.name), "--lock", str(lock))
    return Step("lock", command, writes=(lock,), needs=(placed_by,))


def _task_arguments(options: RoadOptions) -> tuple[str, ...]:
    given = {f"--{f.name.replace('_', '-')}": getattr(options.choice, f.name) for f in fields(options.choice)}
    return tuple(word for name, value in given.items() if value is not None for word in (name, str(value)))
