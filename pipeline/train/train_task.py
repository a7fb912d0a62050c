"""From a file of examples to a checkpoint with a draft model: each step a command, resumed where it was stopped.

Files and folders beside the new checkpoint `weights/NAME`: `.NAME.train` has what the steps leave until all are done,
`NAME.lock` the lock, `NAME.card.md` what was measured, `NAME.schema.json` an inferred schema, to be edited.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.package.new_package import check_name
from pipeline.paths import CODE
from pipeline.prepare.run import work_path
from pipeline.train.card import Measured, write_card
from pipeline.train.choose import SCHEMA_FILE, Choice, choose
from pipeline.train.draft_start import DRAFT_RUN
from pipeline.train.read_examples import Part
from pipeline.weights.atomic import write_json
from pipeline.weights.bases import BASES
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError

ADAPTER_SHARE: Final = 0.6  # of the minutes; the draft model has a quarter, at most 15, the rest is for what is fixed
_DRAFTER_SHARE, _DRAFTER_MINUTES = 0.25, 15.0
_EPOCHS, _MOST_EPOCHS = 3.0, 12.0
_SEEN: Final = 3_000  # examples that a short file is repeated to, within the epochs
_STEPS: Final = 100  # of an epoch, where it is long enough for steps of more than eight examples
_QUANTIZE: Final = 0.6  # seconds for a million parameters, on two cores of an EPYC
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
        name: of the step.
        words: the script and its arguments.
        leaves: what it leaves when it is done.
        minutes: that it takes, about.
        on_resume: further words if an interrupted run of it is continued.
        instead: another command if this one fails with exit code 1; none if empty.
    """

    name: str
    words: tuple[str, ...]
    leaves: Path
    minutes: float
    on_resume: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


def train_task(options: TrainOptions) -> None:
    """Do all steps that are not done yet. Progress and the results go to the terminal.

    Raises:
        CheckpointError: an input cannot be used, or a step failed; what was done stays.
        ExamplesError, TaskFileError: see `choose`.
    """
    check_name(options.out.name)
    work = options.out.with_name(f".{options.out.name}.train")
    work.mkdir(parents=True, exist_ok=True)
    with waiting_lock(work / "lock", f"Waiting for another process that trains {options.out}"):
        started = time.monotonic()
        choice = choose(options.examples, work / "data" / options.out.name, schema=options.schema, task=options.task)
        print("\n".join(choice.notes))
        if options.schema is None and choice.schema is not None:
            kept = options.out.with_name(f"{options.out.name}.schema.json")
            shutil.copyfile(choice.folder / SCHEMA_FILE, kept)
            print(f"The schema is kept in {kept}.")
        steps = plan(options, choice, work)
        print("\n" + "\n".join(_described(number, step, len(steps)) for number, step in enumerate(steps, 1)))
        run = _Run(work, _digest_of(choice.folder))
        for number, step in enumerate(steps, 1):
            run.do(step, f"[{number}/{len(steps)}] {step.name}")
        minutes = (time.monotonic() - started) / 60
        print("\n" + write_card(options.out, choice, options.base, _measured(work, options.out), minutes=minutes))
        shutil.rmtree(work)
        shutil.rmtree(work_path(options.out), ignore_errors=True)


def plan(options: TrainOptions, choice: Choice, work: Path) -> list[Step]:
    """The steps, in order."""
    data, out = choice.folder, options.out
    base = Path(options.base) if Path(options.base).is_dir() else work / "base"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    has_bfloat16 = device == "cuda" or torch.cpu.get_capabilities().get("avx512_bf16", False)
    dtype = "bfloat16" if has_bfloat16 else "float32"
    size = BASES[options.base].size / 0.6e6 if options.base in BASES else 500  # million parameters, about
    fixed = _QUANTIZE * size / 60
    minutes = ADAPTER_SHARE * options.minutes
    learned = choice.counts[Part.TRAIN]
    epochs = min(_MOST_EPOCHS, max(_EPOCHS, _SEEN / learned))
    packs = min(6, max(1, learned // (8 * _STEPS)))
    steps = []
    if base == work / "base":
        fetch = ("fetch", options.base, str(base))
        build = ("build_base", options.base, str(base), "--unquantized")
        steps.append(Step("base", build if options.base in BASES else fetch, base / "config.json", 1))
    adapter = (
        *("train_adapter", "--base", str(base), "--data", str(data), "--task", str(choice.task_file)),
        *("--output", str(work / "adapter"), "--minutes", f"{minutes:g}", "--epochs", f"{epochs:g}"),
        *("--packs", str(packs), "--rank", "16", "--alpha", "32", "--device", device, "--dtype", dtype),
    )
    steps.append(Step("adapter", adapter, work / "adapter" / "adapter_model.safetensors", minutes, ("--resume",)))
    prepare = (
        *("prepare", "--base", str(base), "--adapter", str(work / "adapter"), "--out", str(out)),
        *("--task-file", str(choice.task_file), "--keep"),
    )
    quantized, unquantized = (*prepare, "--cases", str(choice.cases)), (*prepare, "--unquantized")
    steps.append(Step("prepare", quantized, out / "config.json", 2 * fixed + 2, instead=unquantized))
    drafter_minutes = min(_DRAFTER_MINUTES, _DRAFTER_SHARE * options.minutes)
    drafter = ("train_drafter", "--weights", str(out), "--data", str(data), "--minutes", f"{drafter_minutes:g}")
    steps.append(Step("draft model", drafter, out / "config.json", drafter_minutes + 2))
    lock = ("lock_weights", str(out), "--lock", str(out.with_name(f"{out.name}.lock")))
    steps.append(Step("lock", lock, out.with_name(f"{out.name}.lock"), 0.1))
    for name, weights in (("after", out), ("before", work_path(out) / "merged"), ("untrained", base)):
        report = work / f"{name}.json"
        words = ("evaluate", str(data / "test.jsonl"), "--weights", str(weights), "--task", str(choice.task_file))
        steps.append(Step(f"evaluate {name}", (*words, "--json", str(report)), report, 1 + fixed / 4))
    return steps


def _described(number: int, step: Step, total: int) -> str:
    return f"[{number}/{total}] {step.name}, about {max(1, round(step.minutes))} min"


class _Run:
    """Runs steps; what is done is known by a digest of the data and of all commands so far.

    Args:
        work: the work folder.
        data: digest of the examples as they are learned.
    """

    def __init__(self, work: Path, data: str) -> None:
        self._file = work / _STATE
        self._chain = data
        try:
            self._known = dict(json.loads(self._file.read_text("utf-8")))
        except (OSError, ValueError):
            self._known = {}

    def do(self, step: Step, title: str) -> None:
        self._chain = hashlib.sha256(f"{self._chain} {shlex.join(step.words)}".encode()).hexdigest()
        state = self._known.get(step.name)
        if state == f"done {self._chain}" and step.leaves.exists():
            say(f"{title}: done before")
            return
        resumed = step.on_resume if state == f"begun {self._chain}" and _has_checkpoint(step) else ()
        self._note(step.name, f"begun {self._chain}")
        say(f"{title}: scripts/{shlex.join((*step.words, *resumed))}")
        code = _run([str(CODE / "scripts" / step.words[0]), *step.words[1:], *resumed])
        if code == 1 and step.instead:
            say("Four bits cost too many answers, so the weights stay in 16 bits")
            code = _run([str(CODE / "scripts" / step.instead[0]), *step.instead[1:]])
        if code != 0:
            raise CheckpointError(
                f"the step {step.name!r} failed with exit code {code}; what it said is above. Run the same command to "
                "go on from here"
            )
        self._note(step.name, f"done {self._chain}")

    def _note(self, name: str, state: str) -> None:
        self._known[name] = state
        write_json(self._file, self._known)


def _has_checkpoint(step: Step) -> bool:
    return step.leaves.parent.is_dir() and any(step.leaves.parent.iterdir())


def _run(command: Sequence[str]) -> int:
    """The exit code of a command; where this process is interrupted, the command is, too."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # a terminal's Ctrl-C reaches the command as well, which saves its work
                continue
    finally:
        signal.signal(signal.SIGTERM, previous)


def _digest_of(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return hashlib.sha256("".join(f"{path.name} {sha256(path)}\n" for path in files).encode()).hexdigest()


def _measured(work: Path, out: Path) -> Measured:
    def read(path: Path) -> dict[str, Any]:
        return dict(json.loads(path.read_text("utf-8")))

    is_quantized = "quantization_config" in read(out / "config.json")
    return Measured(
        after=read(work / "after.json"),
        before=read(work / "before.json") if is_quantized else None,
        untrained=read(work / "untrained.json"),
        drafts=read(out / DRAFT_RUN) if (out / DRAFT_RUN).is_file() else {},
    )
