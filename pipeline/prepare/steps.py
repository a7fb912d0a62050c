"""The steps to a checkpoint: commands of this repository, each with what it reads and writes, and their order.

They fetch, merge, write the task file, then quantize, place and compare, up to three times if the comparison refuses;
then they train a draft model, and lock.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pipeline.paths import CODE
from pipeline.prepare.options import (
    DRAFTER,
    DRAFTER_CASES,
    PrepareOptions,
    count_cases,
    digest,
    has_texts,
    identity,
    local_folder,
    option_words,
)
from pipeline.prepare.record import FileRecord, draft_record_path
from pipeline.weights.bases import BASES
from serving.weights.draft_weights import DRAFT_MODEL

QUANTIZED_SHARE = 0.45  # of the unquantized bytes, at most: 4 of 16 bits and the embedding as it is
# What is tried when the comparison refuses: scales for 32 weights, which add half a bit a weight, found on more texts.
_CLOSER_NAME: Final = "-closer"  # the end of these steps' names
_CLOSER: Final = {"--group-size": "32", "--max-tokens": "32768"}
# Then the same search result, with the layers that lose most in 16 bits: at most this share of the weights.
_MIXED: Final = "-mixed"
_SIXTEEN_BITS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Args:
        command: name of the script, then its arguments.
        writes: files and folders that it leaves, in the work folder.
        needs: names of earlier steps whose files it reads.
        reads: files and folders of the user.
        report: file that it writes its --json into.
        continues: whether the command goes on with what an interrupted run of it left; otherwise that is removed.
        space: about how many bytes it writes; what is not known in advance counts as 0.
        may_refuse: whether exit code 1 with a report that has not passed is a result.
        is_optional: whether the others go on if it fails with exit code 1, or writes nothing.
    """

    name: str
    command: tuple[str, ...]
    writes: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    reads: tuple[Path, ...] = ()
    report: Path | None = None
    continues: bool = False
    space: int = 0
    may_refuse: bool = False
    is_optional: bool = False

    def argv(self) -> list[str]:
        """The command as it is run."""
        script, *arguments = self.command
        return [str(CODE / "scripts" / script), *arguments]

    def words(self) -> tuple[str, ...]:
        """The script and its arguments as seen from the repository, without quotes."""
        script, *arguments = self.command
        return (f"scripts/{script}", *map(_from_here, arguments))

    def shown(self) -> str:
        """The command as a user would type it in the repository."""
        return shlex.join(self.words())

    def fingerprint(self, outputs: Mapping[str, Mapping[str, FileRecord]]) -> str:
        """A digest of the command and of the content of all that it reads; `outputs` are the files of earlier steps."""
        needed = {name: {path: file.sha256 for path, file in outputs[name].items()} for name in self.needs}
        read = {str(path): identity(path) for path in self.reads}
        return digest({"command": self.command, "needs": needed, "reads": read})

    def read_report(self) -> dict[str, Any] | None:
        """What the command said with --json; None where it has no report, or ended before it wrote one."""
        if self.report is None or not self.report.exists():
            return None
        content = json.loads(self.report.read_text("utf-8"))
        return content if isinstance(content, dict) else {"report": content}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the checkpoint: steps, the last of which may refuse it, and what is new in it, as a user is told."""

    about: str
    steps: list[Step]

    @property
    def placing(self) -> str:
        """The name of the step that puts the checkpoint in place."""
        return next(step.name for step in self.steps if step.name.startswith("place"))


def search_path(work: Path, suffix: str = "") -> Path:
    """Where the result of a search lies in the work folder; `suffix` is the end of the step's name."""
    return work / f"search{suffix}.safetensors"


def lock_path(checkpoint: Path) -> Path:
    """Where the lock of a checkpoint is: beside it, because a lock has all files of the folder."""
    return checkpoint.with_name(f"{checkpoint.name}.lock")


def fetch_steps(options: PrepareOptions, work: Path) -> list[Step]:
    """Bring the base and the adapter into the work folder."""
    steps = [_fetch("fetch-base", options.base, work / "base")]
    if options.adapter is not None:
        steps.append(_fetch("fetch-adapter", options.adapter, work / "adapter"))
    return steps


def later_steps(
    options: PrepareOptions, work: Path, *, quantized: bool, base_bytes: int = 0
) -> tuple[list[Step], list[Way]]:
    """What follows when base and adapter are there.

    Args:
        quantized: whether the base is quantized already.
        base_bytes: the size of the base; 0 where it is not known yet.

    Returns:
        The first steps, and ways to go on to the checkpoint; those after the first are for when the comparison refuses.
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
            ("write_task", str(work / model), *option_words(**asdict(options.choice)), "--name", options.out.name),
            writes=(task_file,),
            needs=(made_by,),
            reads=tuple(value for value in asdict(options.choice).values() if isinstance(value, Path)),
        )
    )
    if not options.quantize or quantized:
        return steps, [Way("", [_place(options, work, model, made_by, task_file, "")])]
    ways = []
    for attempt in _attempts(options, work):
        quantize = _quantize(options, work, model, made_by, base_bytes, attempt)
        place = _place(options, work, f"quantized{attempt.suffix}", quantize.name, task_file, attempt.suffix)
        compare = [_compare(options, work, model, made_by, attempt.suffix)] if has_texts(options) else []
        ways.append(Way(attempt.about, [quantize, place, *compare]))
    return steps, ways


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A way to quantize.

    Args:
        suffix: the end of its steps' names.
        arguments: of scripts/quantize_awq.
        about: what is new in it, for the user.
        search: a search result that it takes; None makes one.
        searched_by: the step that makes that result; None where the user gave it.
    """

    suffix: str
    arguments: tuple[str, ...]
    about: str = ""
    search: Path | None = None
    searched_by: str | None = None


def _attempts(options: PrepareOptions, work: Path) -> list[_Attempt]:
    """The ways to quantize, the smallest checkpoint first. The user's arguments stay."""
    given, share = options.quantize_options, ("--sixteen-bits", f"{_SIXTEEN_BITS:g}")
    mixed = _Attempt(_MIXED, share, "Leaving the layers that four bits change most in 16", options.reuse_search)
    if options.reuse_search is not None:
        return [_Attempt("", given, search=options.reuse_search), mixed]
    attempts = [_Attempt("", given)]
    if closer := [word for name, value in _CLOSER.items() if name not in given for word in (name, value)]:
        attempts.append(
            _Attempt(_CLOSER_NAME, (*given, *closer), "Trying smaller groups and more texts for the search")
        )
    last = attempts[-1].suffix
    return [*attempts, replace(mixed, search=search_path(work, last), searched_by=f"quantize{last}")]


def _place(options: PrepareOptions, work: Path, model: str, made_by: str, task_file: Path, suffix: str) -> Step:
    into = ("--into", str(work / options.out.name), "--task-file", str(task_file), "--name", options.out.name)
    command = ("write_task", str(work / model), *into)
    return Step(f"place{suffix}", command, writes=(work / options.out.name,), needs=(made_by, "task"))


def _fetch(name: str, source: str, folder: Path) -> Step:
    if source in BASES:
        command: tuple[str, ...] = ("build_base", source, str(folder), "--unquantized")
        return Step(name, command, writes=(folder,), space=5 * BASES[source].size)
    local = local_folder(source)
    reads = () if local is None else (local,)
    return Step(name, ("fetch", str(local or source), str(folder)), writes=(folder,), reads=reads, continues=True)


def _merge(options: PrepareOptions, work: Path, base_bytes: int) -> Step:
    folders = (str(work / "base"), str(work / "adapter"), str(work / "merged"))
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
    options: PrepareOptions, work: Path, model: str, made_by: str, base_bytes: int, attempt: _Attempt
) -> Step:
    suffix, search = attempt.suffix, attempt.search
    needs, reads, writes = [made_by], [], [work / f"quantized{suffix}"]
    command = ["quantize_awq", str(work / model), str(writes[0])]
    if search is not None:
        command += ["--reuse-search", str(search), *attempt.arguments]
        if suffix == _MIXED:  # the result says which layers have 16 bits
            writes.append(search_path(work, suffix))
            command += ["--save-search", str(writes[1])]
        if attempt.searched_by is None:
            reads.append(search)
        else:
            needs.append(attempt.searched_by)
    else:
        texts = options.calibration or options.cases
        assert texts is not None, "check_options wants one of them"
        reads.append(texts)
        writes.append(search_path(work, suffix))
        if options.calibration is None:
            needs.append("task")
        kind = "--task-cases" if options.calibration is None else "--calibration"
        command += [kind, str(texts), *attempt.arguments, "--save-search", str(writes[1])]
    report = work / f"quantize{suffix}.json"
    return Step(
        f"quantize{suffix}",
        (*command, "--json", str(report)),
        writes=tuple(writes),
        needs=tuple(needs),
        reads=tuple(reads),
        report=report,
        continues=search is None,
        space=int(base_bytes * (QUANTIZED_SHARE + (_SIXTEEN_BITS if suffix == _MIXED else 0))),
    )


def _compare(options: PrepareOptions, work: Path, model: str, made_by: str, suffix: str) -> Step:
    report = work / f"compare{suffix}.json"
    if options.cases is not None:
        texts, read = "--task-cases", options.cases
    else:
        assert options.calibration is not None, "the search needed one of them"
        texts, read = "--calibration", options.calibration
    command = (
        "compare",
        str(work / model),
        str(work / options.out.name),
        texts,
        str(read),
        *options.compare_options,
    )
    return Step(
        f"compare{suffix}",
        (*command, "--json", str(report)),
        writes=(),
        needs=(made_by, "task", f"place{suffix}"),
        reads=(read,),
        report=report,
        may_refuse=True,
    )


def last_steps(options: PrepareOptions, work: Path, placed_by: str) -> list[Step]:
    """Train a draft model for the checkpoint that the step `placed_by` put in place, and lock it.

    There is no draft model without enough cases.

    Raises:
        OSError: the file of cases cannot be read.
    """
    folder, lock = work / options.out.name, work / lock_path(options.out).name
    steps = []
    if options.cases is not None and count_cases(options) >= DRAFTER_CASES:
        report = work / f"{DRAFTER}.json"
        command = ("train_drafter", "--weights", str(folder), "--data", str(options.cases), *options.drafter_options)
        steps.append(
            Step(
                DRAFTER,
                (*command, "--json", str(report)),
                writes=(folder / DRAFT_MODEL, draft_record_path(folder)),
                needs=(placed_by,),
                reads=(options.cases,),
                report=report,
                is_optional=True,
            )
        )
    needs = (placed_by, *(step.name for step in steps))
    lock_command = ("lock_weights", str(folder), "--lock", str(lock))
    return [*steps, Step("lock", lock_command, writes=(lock,), needs=needs)]


def _from_here(argument: str) -> str:
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return argument
