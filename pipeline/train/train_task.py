"""From a file of examples to a checkpoint with a draft model: each step a command, resumed where it was stopped.

Files and folders beside the new checkpoint `weights/NAME`: `.NAME.train` has what the steps leave until all are done,
`NAME.lock` the lock, `NAME.card.md` what was measured, `NAME.confidence.json` how often fields were right by their
probability, `NAME.draft-run.json` how the draft model was trained,
`NAME.schema.json` an inferred schema, to be edited, `NAME.train` what scripts/improve starts from.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.package.new_package import check_name
from pipeline.paths import CODE
from pipeline.prepare.command import REFUSED
from pipeline.prepare.run import work_path
from pipeline.train.card import Measured, write_card
from pipeline.train.choose import SCHEMA_FILE, Choice, choose
from pipeline.train.draft_start import run_record
from pipeline.train.example_files import Part
from pipeline.train.kept import Kept, keep, prepared_from
from pipeline.train.record import RunRecord
from pipeline.weights.atomic import write_json
from pipeline.weights.bases import BASES
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.weights.draft_weights import DRAFT_MODEL

ADAPTER_SHARE: Final = 0.6  # of the minutes; the draft model has a quarter, at most 15, the rest is for what is fixed
_DRAFTER_SHARE, _DRAFTER_MINUTES = 0.25, 15.0
_EPOCHS, _MOST_EPOCHS = 3.0, 12.0
_SEEN: Final = 3_000  # examples that a short file is repeated to, within the epochs
_STEPS: Final = 100  # of an epoch, where it is long enough for steps of more than `_PACK` examples
_PACK, _MOST_PACKS = 8, 6  # examples in a pack; packs in a step
_QUANTIZE: Final = 0.3  # seconds for a megabyte of the base's GGUF, on two cores of a Xeon with AVX512
_ROUNDED_SHARE, _ROUNDED_RATE = 0.25, "3e-4"  # of the adapter's minutes, and peak rate, to train with rounded weights
_STATE: Final = "state.json"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What a user wants.

    Args:
        examples: JSONL of {"input", "output"}, or a folder of train.jsonl, validation.jsonl and test.jsonl.
        out: the folder of the new checkpoint.
        base: a name of `BASES`, hf://…, https://… or a folder.
        schema: of the answers; None infers it.
        task: schema or chat; None chooses.
        minutes: for the adapter and the draft model together.
    """

    examples: Path
    out: Path
    base: str
    schema: Path | None = None
    task: Any = None
    minutes: float = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command of scripts/.

    Args:
        words: the script and its arguments.
        leaves: what it leaves when it is done.
        minutes: that it takes, about.
        on_resume: further words if an interrupted run of it is continued.
        instead: what is done instead if `prepare` ends with its exit code for a refused checkpoint.
        because: why, for people.
    """

    name: str
    words: tuple[str, ...]
    leaves: Path
    minutes: float
    on_resume: tuple[str, ...] = ()
    instead: Step | None = None
    because: str = ""


def train_task(options: TrainOptions) -> None:
    """Do all steps that are not done yet. Progress and the results go to the terminal.

    Raises:
        CheckpointError: an input cannot be used, or a step failed; what was done stays.
        ExamplesError, TaskFileError: see `choose`.
    """
    check_name(options.out.name)
    work = options.out.with_name(f".{options.out.name}.train")
    work.mkdir(parents=True, exist_ok=True)
    with waiting_lock(work / "lock", f"Waiting for another process that trains {options.out}") as lock:
        started = time.monotonic()
        choice = choose(options.examples, work / "data" / options.out.name, schema=options.schema, task=options.task)
        print("\n".join(choice.notes))
        if options.schema is None and choice.schema is not None:
            kept = options.out.with_name(f"{options.out.name}.schema.json")
            shutil.copyfile(choice.folder / SCHEMA_FILE, kept)
            print(f"The schema is in {kept}. To choose another, edit that file and give it with --schema.")
        steps = plan(options, choice, work)
        state, digest = work / _STATE, digest_of(choice.folder)
        print("\n" + step_list(steps, done_steps(steps, state, digest)))
        do_steps(steps, state, digest, partial(run_command, lock=lock))
        minutes = (time.monotonic() - started) / 60
        print("\n" + write_card(options.out, choice, options.base, _measured(work, options.out), minutes=minutes))
        base = str(Path(options.base).resolve()) if Path(options.base).is_dir() else options.base
        keep(options.out, Kept(base, *prepared_from(options.out), choice.folder))
        shutil.rmtree(work)
        shutil.rmtree(work_path(options.out), ignore_errors=True)


def plan(options: TrainOptions, choice: Choice, work: Path) -> list[Step]:
    """The steps, in order."""
    data, out = choice.folder, options.out
    base, steps = base_steps(options.base, work)
    steps += _quantized_steps(options, choice, work, base, ADAPTER_SHARE * options.minutes)
    drafter_minutes = min(_DRAFTER_MINUTES, _DRAFTER_SHARE * options.minutes)
    drafter = ("train_drafter", "--weights", str(out), "--data", str(data), "--minutes", f"{drafter_minutes:g}")
    steps.append(Step("draft model", drafter, out / "config.json", drafter_minutes + 2))
    lock = ("lock_weights", str(out), "--lock", str(out.with_name(f"{out.name}.lock")))
    steps.append(Step("lock", lock, out.with_name(f"{out.name}.lock"), 0.1))
    for name, weights in (("after", out), ("before", work_path(out) / "merged"), ("untrained", base)):
        report = work / f"{name}.json"
        words = ("evaluate", str(data / "test.jsonl"), "--weights", str(weights), "--task", str(choice.task_file))
        steps.append(Step(f"evaluate {name}", (*words, "--json", str(report)), report, 2))
    return steps


def base_steps(base: str, work: Path) -> tuple[Path, list[Step]]:
    """The folder of an unquantized base, and the steps that bring it there: none for a folder.

    Args:
        base: a name of `BASES`, hf://…, https://… or a folder.

    Raises:
        CheckpointError: there is no such base.
    """
    if Path(base).is_dir():
        return Path(base), []
    if base not in BASES and "://" not in base:
        raise CheckpointError(
            f"the base {base!r} is neither a folder nor known; known are {', '.join(BASES)}, and "
            "hf://ORG/NAME@REVISION or https://… are fetched"
        )
    folder = work / "base"
    build = ("build_base", base, str(folder), "--unquantized")
    words = build if base in BASES else ("fetch", base, str(folder))
    return folder, [Step("base", words, folder / "config.json", 1)]


def step_size(examples: int) -> tuple[str, ...]:
    """The options of scripts/train_adapter for the size of a step, with packs for all threads.

    An epoch has `_STEPS` steps or more, where there are examples enough.
    """
    in_step = _PACK * min(_MOST_PACKS, max(1, examples // (_PACK * _STEPS)))
    threads = 1 if torch.cuda.is_available() else torch.get_num_threads()
    packs = min(in_step, threads * math.ceil(in_step / (_PACK * threads)))
    return "--packs", str(packs), "--branches", str(math.ceil(in_step / packs))


def hardware() -> tuple[str, ...]:
    """The options of scripts/train_adapter for this machine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    has_bfloat16 = device == "cuda" or torch.cpu.get_capabilities().get("avx512_bf16", False)
    return "--device", device, "--dtype", "bfloat16" if has_bfloat16 else "float32"


def _quantized_steps(options: TrainOptions, choice: Choice, work: Path, base: Path, minutes: float) -> list[Step]:
    """The adapter, trained on with weights rounded as they will be served, and the checkpoint.

    If four bits cost too many answers all the same, the checkpoint has 16.
    """
    learned, out = choice.counts[Part.TRAIN], options.out
    size = BASES[options.base].size / 1e6 if options.base in BASES else 500
    quantizing = _QUANTIZE * size / 60  # minutes
    epochs = min(_MOST_EPOCHS, max(_EPOCHS, _SEEN / learned))
    first, rounded, merged = (work / name for name in ("adapter", "adapter-rounded", "merged"))
    found = work / "search.safetensors"

    def train(name: str, share: float, output: Path, more: Sequence[str]) -> Step:
        words = (
            *("train_adapter", "--base", str(base), "--data", str(choice.folder), "--task", str(choice.task_file)),
            *("--output", str(output), "--minutes", f"{share * minutes:g}", "--epochs", f"{share * epochs:g}"),
            *("--rank", "16", "--alpha", "32", *step_size(learned), *hardware(), *more),
        )
        return Step(name, words, output / "adapter_model.safetensors", share * minutes, ("--resume",))

    def prepare(adapter: Path, *more: str) -> tuple[str, ...]:
        given = ("prepare", "--base", str(base), "--adapter", str(adapter), "--out", str(out))
        return (*given, "--task-file", str(choice.task_file), "--no-drafter", "--keep", *more)

    cases = str(choice.cases)
    of_search = ("--task", str(choice.task_file), "--task-cases", cases)
    of_rounded = ("--init", str(first), "--search", str(found), "--rate", _ROUNDED_RATE, "--seed", "1")  # another order
    sixteen = Step("prepare in 16 bits", prepare(first, "--unquantized"), out / "config.json", 1)
    return [
        train("adapter", 1 - _ROUNDED_SHARE, first, ("--optimizer", "muon")),
        Step("merge", ("merge_lora", str(base), str(first), str(merged)), merged / "config.json", quantizing / 4),
        Step("search", ("quantize_awq", str(merged), *of_search, "--save-search", str(found)), found, 2 * quantizing),
        train("adapter for four bits", _ROUNDED_SHARE, rounded, of_rounded),
        Step(
            "prepare",
            prepare(rounded, "--reuse-search", str(found), "--cases", cases),
            out / "config.json",
            quantizing + 2,
            instead=sixteen,
            because="Four bits cost too many answers, so the weights stay in 16 bits",
        ),
    ]


def step_list(steps: Sequence[Step], done: Collection[str] = ()) -> str:
    """A line for each step, with its number and about how long it takes, unless its name is among those done before."""
    times = ("done before" if step.name in done else f"about {max(1, round(step.minutes))} min" for step in steps)
    lines = (f"{step.name}, {time}" for step, time in zip(steps, times, strict=True))
    return "\n".join(f"[{number}/{len(steps)}] {line}" for number, line in enumerate(lines, 1))


def run_command(command: Sequence[str], lock: int | None = None) -> int:
    """The exit code of a command.

    Args:
        lock: a descriptor that it inherits, so that it holds the lock if this process is killed.

    Raises:
        KeyboardInterrupt: this process was told to stop; the command has saved its work and ended.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=() if lock is None else (lock,))
    told: list[int] = []

    def stop(number: int, _: object) -> None:
        told.append(number)
        if number == signal.SIGTERM:  # a terminal's Ctrl-C reaches the command without us
            process.terminate()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if told:
        raise KeyboardInterrupt
    return code


def do_steps(
    steps: Sequence[Step],
    state: Path,
    data: str,
    call: Callable[[Sequence[str]], int],
    *,
    before: int = 0,
    total: int | None = None,
) -> None:
    """Do the steps that are not done yet, in order; what a step is refused for is done in another way.

    Args:
        state: a file that keeps what is done. That is known by a digest of the data and of all commands so far.
        data: digest of the examples as they are learned.
        call: runs a command and returns its exit code.
        before: the number of steps before these, which another call did.
        total: the number of all; None where these are all.

    Raises:
        CheckpointError: a step failed; what was done stays.
    """
    run = _Run(state, data, call)
    for number, step in enumerate(steps, before + 1):
        run.do(step, f"[{number}/{total or len(steps)}] {step.name}")


def done_steps(steps: Sequence[Step], state: Path, data: str) -> set[str]:
    """The names of the steps that `do_steps`, which has the same arguments, would find done."""
    run = _Run(state, data, run_command)
    return {step.name for step in steps if run.finds_done(step)}


class _Run:
    """A run of `do_steps`, which has the arguments."""

    def __init__(self, state: Path, data: str, call: Callable[[Sequence[str]], int]) -> None:
        self._file, self._chain, self._call = state, data, call
        try:
            self._known = dict(json.loads(self._file.read_text("utf-8")))
        except (OSError, ValueError):
            self._known = {}

    def finds_done(self, step: Step) -> bool:
        """Whether the next step is done; its command joins those by which the steps after it are known."""
        self._chain = hashlib.sha256(f"{self._chain} {shlex.join(step.words)}".encode()).hexdigest()
        return self._known.get(step.name) == f"done {self._chain}" and step.leaves.exists()

    def do(self, step: Step, title: str) -> None:
        """Run a step that is not done yet, and if it is refused, what is to be done instead.

        Raises:
            CheckpointError: it failed.
        """
        if self.finds_done(step):
            say(f"{title}: done before")
            return
        state, is_refused = self._known.get(step.name), f"refused {self._chain}"
        if state == is_refused and step.instead is not None:
            self._do_instead(step, step.instead, title)
            return
        resumed = step.on_resume if state == f"begun {self._chain}" and _has_checkpoint(step) else ()
        # Other data or a kill may have left a folder: build_base replaces none, and train_adapter would go on from it.
        if step.words[0] == "build_base" or (step.words[0] == "train_adapter" and not resumed):
            shutil.rmtree(step.leaves.parent, ignore_errors=True)
        self._note(step.name, f"begun {self._chain}")
        say(f"{title}: scripts/{shlex.join((*step.words, *resumed))}")
        code = self._call([str(CODE / "scripts" / step.words[0]), *step.words[1:], *resumed])
        if code == REFUSED and step.instead is not None:
            self._note(step.name, is_refused)
            self._do_instead(step, step.instead, title)
            return
        if code != 0:
            raise CheckpointError(
                f"the step {step.name!r} failed with exit code {code}; what it said is above. Run the same command to "
                "go on from here"
            )
        self._note(step.name, f"done {self._chain}")

    def _do_instead(self, step: Step, other: Step, title: str) -> None:
        say(step.because)
        chain = self._chain
        self.do(other, f"{title}, instead: {other.name}")
        self._note(step.name, f"done {chain}")
        self._chain = chain  # what follows does not depend on the way

    def _note(self, name: str, state: str) -> None:
        self._known[name] = state
        write_json(self._file, self._known)


def _has_checkpoint(step: Step) -> bool:
    return step.leaves.parent.is_dir() and any(step.leaves.parent.iterdir())


def digest_of(folder: Path, *more: Path) -> str:
    """A digest of the files in a folder, and of more files."""
    files = [*sorted(path for path in folder.iterdir() if path.is_file()), *more]
    return hashlib.sha256("".join(f"{path.name} {sha256(path)}\n" for path in files).encode()).hexdigest()


def _measured(work: Path, out: Path) -> Measured:
    def read(path: Path) -> dict[str, Any]:
        return dict(json.loads(path.read_text("utf-8")))

    run = RunRecord.load(work / "adapter")
    is_quantized, drafted = "quantization_config" in read(out / "config.json"), run_record(out)
    return Measured(
        after=read(work / "after.json"),
        before=read(work / "before.json") if is_quantized else None,
        untrained=read(work / "untrained.json"),
        run=run.followed_by(RunRecord.load(work / "adapter-rounded")) if is_quantized else run,
        drafts=read(drafted) if (out / DRAFT_MODEL).is_file() and drafted.is_file() else {},
    )
