"""From corrections to a better version: each step a command, resumed where it was stopped.

Files and folders beside the new version `weights/NAME`: `.NAME.improve` has what the steps leave until all are done,
`NAME.lock` the lock, `NAME.card.md` what changed, `NAME.confidence.json` how often fields were right by their
probability, `NAME.version.json` the record, `NAME.train` what the next improvement starts from. Of an adapter on demand
the new version is a folder of the same kind, without a lock and a confidence.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.evaluate.reliability import confidence_of, write_reliability
from pipeline.evaluate.task_folder import task_folder
from pipeline.improve.card import card, lost, table
from pipeline.improve.choice import LIMIT, TRIES, Answers, Candidate, choose, next_share
from pipeline.improve.data import PEOPLE, TIMES, Data, kept_data, write_data
from pipeline.improve.lines import Correction
from pipeline.package.new_package import check_name
from pipeline.package.version import VersionRecord
from pipeline.paths import ROOT
from pipeline.train.kept import Kept, find_kept, find_kept_of_adapter, keep
from pipeline.train.lora_model import read_adapter_config
from pipeline.train.record import RUN
from pipeline.train.train_task import (
    Step,
    base_steps,
    digest_of,
    do_steps,
    done_steps,
    hardware,
    run_command,
    step_list,
    step_size,
)
from pipeline.weights.atomic import place_file, replace_folder, write_json, write_text
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.weights.adapter_files import CONFIG, GOLDEN, TENSORS, adapter_digest, files_that_count
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.task import TASK_FILE, task_name

_ADAPTER_SHARE, _DRAFTER_SHARE, _DRAFTER_MINUTES = 0.75, 0.25, 5.0  # of the minutes
_RATE, _EPOCHS = "3e-4", "2"
# Questions about different columns do not begin alike, so a pack has one or two of them, and steps of so few, as higher
# rates, forget much (docs/log.md).
# Corrections in runs fill their packs.
_HONEYCOMB_STEPS: Final = {False: ("1.5e-4", "6"), True: ("3e-4", "4")}  # rate and packs, by `Data.in_runs`
_MAX_RANK: Final = 64  # a mean of products adds up ranks; without a limit they would double with each version
_PEOPLE: Final = Path("examples") / "honeycomb" / "people" / "dev.jsonl"
_PLACED: Final = "placed.json"  # which candidate is at the place of the new version
_CURRENT, _NEW = "current", "new"  # the versions in reports
_CONTEXT: Final = "max_position_embeddings"


@dataclass(frozen=True, slots=True)
class ImproveOptions:
    """What a user wants.

    Args:
        weights: folder of the current version.
        out: folder of the new one.
        replay: cases in place of the kept training data; those without an answer are answered by the current version.
        minutes: of training: the adapter and the draft model.
        limit: points that the lower end of the interval on old examples may be below 0.
        adapter: folder of the adapter on `weights` that is to be better in place of these; None for the weights.
        base: the unquantized base of `adapter`, as in `Kept`; None for the one that is known.
    """

    weights: Path
    out: Path
    replay: Path | None = None
    minutes: float = 20.0
    limit: float = LIMIT
    adapter: Path | None = None
    base: str | None = None

    @property
    def current(self) -> Path:
        """Folder of what is to be better."""
        return self.weights if self.adapter is None else self.adapter

    @property
    def task_file(self) -> Path:
        """What says how it is asked; an adapter may have none of its own."""
        own = self.current / TASK_FILE
        return own if own.is_file() else self.weights / TASK_FILE


class RefusedError(Exception):
    """No candidate is a better version; the table above says why."""


def improve(
    options: ImproveOptions, corrections: Sequence[Correction], call: Callable[[Sequence[str]], int] | None = None
) -> None:
    """Train candidates, choose one, and make it a version. Progress and the results go to the terminal.

    Args:
        corrections: that were accepted, in the order in which they were made.
        call: runs a command and returns its exit code; None is `run_command`.

    Raises:
        RefusedError: no candidate is better.
        CheckpointError: an input cannot be used, or a step failed; what was done stays.
        TaskError: the task file or a file of cases is wrong.
    """
    check_name(options.out.name)
    if not (options.weights / "config.json").is_file():
        raise CheckpointError(f"{options.weights} is no checkpoint; build or fetch it first: scripts/use_weights lists")
    if options.adapter is not None and not (options.adapter / CONFIG).is_file():
        raise CheckpointError(f"{options.adapter} is no adapter: it has no {CONFIG}")
    work, kept = options.out.with_name(f".{options.out.name}.improve"), _find_kept(options)
    if options.out.exists() and not (work / _PLACED).is_file():
        raise CheckpointError(f"{options.out} exists; give another --out")
    work.mkdir(parents=True, exist_ok=True)
    with waiting_lock(work / "lock", f"Waiting for another process that makes {options.out}") as lock:
        call = call or partial(run_command, lock=lock)
        with task_folder(options.weights, None if options.adapter is None else options.task_file) as folder:
            data = write_data(work, folder, kept, corrections, options.replay, say, options.adapter)
        steps, last = plan(options, kept, data, work), last_steps(options, data, work)
        first = candidate_steps(options, kept, data, work, 0.5)
        state, digest = work / "state.json", digest_of(data.folder, data.questions)
        _forget_others(work, [*steps, *first], digest)
        done_before = done_steps(steps, state, digest) | done_steps(first, state, f"{digest} 0.5")
        if (placed := work / _PLACED).is_file():
            chosen_before = _name(json.loads(placed.read_text("utf-8")))
            done_before |= done_steps(last, state, f"{digest} {chosen_before}")
        print("\n" + step_list([*steps, *first, *last], done_before))
        print(f"At most {TRIES - 1} more candidates follow the first one, with as many steps each.\n")
        done, total = len(steps), len(steps) + TRIES * len(first) + len(last)
        do_steps(steps, state, digest, call, total=total)
        before, found = _answers(work, _CURRENT, data), dict[float, Candidate]()
        while (share := next_share(found, options.limit)) is not None:
            candidate = candidate_steps(options, kept, data, work, share)
            do_steps(candidate, state, f"{digest} {share:g}", call, before=done, total=total)
            found[share] = Candidate.of(_name(share), share, before, _answers(work, f"{share:g}", data))
            done += len(candidate)
        candidates = [found[share] for share in sorted(found, reverse=True)]
        chosen = choose(candidates, options.limit)
        print("\n" + "\n".join(table(options.current.name, candidates, options.limit)) + "\n")
        if chosen is None:
            closest = max(candidates, key=lambda one: one.old.low)
            print("\n".join(lost(closest)))
            raise RefusedError(
                f"no candidate is better, so {options.current.name} stays as it is. More corrections help, or a higher "
                f"--limit; the candidates are in {work}"
            )
        say(f"Chosen: {chosen.name}")
        place(_candidate(options, work, chosen.share), options, work / _PLACED, chosen.share)
        do_steps(last, state, f"{digest} {chosen.name}", call, before=total - len(last), total=total)
        speed = {name: read(work, name, "questions")["speed"] for name in (_CURRENT, _NEW)}
        about = (options.out.name, options.current.name, chosen, candidates, data, speed)
        lines = list(card(*about, limit=options.limit))
        if options.adapter is None:
            reports = [read(work, _NEW, "questions"), *read_people(work, f"{chosen.share:g}")]
            lines += write_reliability(options.out, confidence_of(*reports))
        text = "\n".join(lines)
        write_text(options.out.with_name(f"{options.out.name}.card.md"), text)
        adapter, trained = adapter_path(work, chosen.share), adapter_path(work, 1)
        if chosen.share < 1 and (trained / RUN).is_file():  # it says how to train on
            shutil.copyfile(trained / RUN, adapter / RUN)
        keep(options.out, Kept(kept.base, adapter, kept.search, kept_data(data, kept, work / "kept-data")))
        record(options, data, chosen, speed).write(options.out)
        print(text + "\n\nNext:\n  " + _next(options))
        shutil.rmtree(work)


def _forget_others(work: Path, steps: Sequence[Step], digest: str) -> None:
    """Remove what a run has made of other corrections or with other options; the commands do not replace it."""
    made_from = work / "made-from.json"
    now = [digest, *(list(step.words) for step in steps)]
    if made_from.is_file() and json.loads(made_from.read_text("utf-8")) != now:
        say("The corrections or the options are others than before, so all is made again")
        for path in (work / "candidates", work / "reports", *work.glob("adapter-*")):
            shutil.rmtree(path, ignore_errors=True)
        (work / _PLACED).unlink(missing_ok=True)
    write_json(made_from, now)


def plan(options: ImproveOptions, kept: Kept, data: Data, work: Path) -> list[Step]:
    """The steps before the candidates, in order."""
    base, steps = _base(kept.base, work)
    config = read_adapter_config(kept.adapter)
    layers = sorted({str(name).rpartition(".")[2] for name in config.target_modules or ()})
    minutes = _ADAPTER_SHARE * options.minutes
    task_file = str(options.task_file)
    rate, size = _RATE, step_size(TIMES * data.learned + data.replayed)
    if task_name(options.weights) == "honeycomb":
        rate, packs = _HONEYCOMB_STEPS[data.in_runs]
        size = "--packs", packs
    train = (
        *("train_adapter", "--base", str(base), "--data", str(data.folder), "--task", task_file),
        *("--output", str(adapter_path(work, 1)), "--init", str(kept.adapter), "--minutes", f"{minutes:g}"),
        *("--epochs", _EPOCHS, "--rate", rate, "--rank", str(config.r), "--alpha", str(config.lora_alpha)),
        *("--targets", ",".join(layers), *size, *hardware()),
    )
    if kept.search is not None and _was_rounded(kept.adapter):
        train += ("--search", str(kept.search))
    steps.append(Step("adapter", train, adapter_path(work, 1) / "adapter_model.safetensors", minutes, ("--resume",)))
    return [*steps, *_evaluations(_CURRENT, options, options.current, data, work)]


def candidate_steps(options: ImproveOptions, kept: Kept, data: Data, work: Path, share: float) -> list[Step]:
    """The steps from the trained adapter to the answers of the candidate with this share of it."""
    adapter, folder, steps = adapter_path(work, share), _candidate(options, work, share), list[Step]()
    if share < 1:
        parts = (str(adapter_path(work, 1)), str(kept.adapter), "--weights", f"{share:g},{1 - share:g}")
        words = ("merge_adapters", *parts, "--method", "cat", "--max-rank", str(_MAX_RANK), "--out", str(adapter))
        steps.append(Step(_name(share), words, adapter / "adapter_config.json", 0.2))
    if options.adapter is None:
        rounding = ("--unquantized",) if kept.search is None else ("--reuse-search", str(kept.search))
        prepare = ("prepare", "--base", str(_base(kept.base, work)[0]), "--adapter", str(adapter), "--out", str(folder))
        prepare += ("--task-file", str(options.task_file), "--no-drafter", *rounding)
        steps.append(Step(f"{_name(share)}, as it will serve", prepare, folder / "config.json", 3))
    return [*steps, *_evaluations(f"{share:g}", options, folder, data, work)]


def last_steps(options: ImproveOptions, data: Data, work: Path) -> list[Step]:
    """The steps from the chosen candidate to a version."""
    out, minutes = options.out, min(_DRAFTER_MINUTES, _DRAFTER_SHARE * options.minutes)
    drafted: tuple[str, ...] = ("--weights", str(out))
    if options.adapter is not None:
        drafted = ("--weights", str(options.weights), "--adapter", str(out))
    drafter = ("train_drafter", *drafted, "--from-predictions", str(data.drafts), "--minutes", f"{minutes:g}")
    lock, report = out.with_name(f"{out.name}.lock"), _report(work, _NEW, "questions")
    judge = ("evaluate", str(data.questions), *_asked(options, out), "--json", str(report))
    steps = [Step("draft model", drafter, out, minutes + 2)]
    if options.adapter is None:
        steps.append(Step("lock", ("lock_weights", str(out), "--lock", str(lock)), lock, 0.1))
    return [*steps, Step("speed with its draft model", judge, report, 2, ("--resume",))]


def _find_kept(options: ImproveOptions) -> Kept:
    if options.adapter is None:
        return find_kept(ROOT, options.weights)
    return find_kept_of_adapter(options.adapter, options.weights, options.base)


def _candidate(options: ImproveOptions, work: Path, share: float) -> Path:
    """Where a candidate is as it will serve: merged and quantized, or an adapter on demand."""
    if options.adapter is not None:
        return adapter_path(work, share)
    return work / "candidates" / f"{share:g}" / options.out.name


def _asked(options: ImproveOptions, version: Path) -> tuple[str, ...]:
    """The words with which scripts/evaluate asks a version as it will serve."""
    if options.adapter is None:
        return ("--weights", str(version))
    words = ("--weights", str(options.weights), "--on-demand", str(version))
    return (*words, "--task", str(options.task_file)) if options.task_file.parent == options.adapter else words


def _next(options: ImproveOptions) -> str:
    if options.adapter is None:
        return f"scripts/versions promote {options.out.name}"
    digest = adapter_digest(options.out)
    return f"give {options.out} and its digest {digest} to the adapter's entry in adapters.yaml, and restart the server"


def place(candidate: Path, options: ImproveOptions, marker: Path, share: float) -> None:
    """Put a candidate at `options.out`, with the draft model and the context length of the current version.

    An adapter gets all that the current one has beside its weights, but for its golden answers, which are others now.

    Nothing is done where `marker` says that it is there.
    """
    out, current = options.out, options.weights
    if out.is_dir() and marker.is_file() and json.loads(marker.read_text("utf-8")) == share:
        return
    staging = out.with_name(f".{out.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    if options.adapter is not None:
        found = (path.relative_to(options.adapter).as_posix() for path in options.adapter.rglob("*") if path.is_file())
        for name in files_that_count(found):
            source = candidate if name in (CONFIG, TENSORS) else options.adapter
            if name != GOLDEN:
                place_file(source / name, staging / name)
    else:
        for path in candidate.rglob("*"):
            if path.is_file():
                place_file(path, staging / path.relative_to(candidate))
        if (current / DRAFT_MODEL).is_file():
            shutil.copyfile(current / DRAFT_MODEL, staging / DRAFT_MODEL)
        config, own = (json.loads((folder / "config.json").read_text("utf-8")) for folder in (staging, current))
        if _CONTEXT in own:
            write_json(staging / "config.json", config | {_CONTEXT: own[_CONTEXT]})
    write_json(marker, share)
    replace_folder(staging, out)


def record(options: ImproveOptions, data: Data, chosen: Candidate, speed: dict[str, dict[str, float]]) -> VersionRecord:
    """The record of the new version."""
    learned = data.folder / "corrections.jsonl"
    held_out = next(iter(chosen.sets.values())).n
    return VersionRecord(
        name=options.out.name,
        parent=options.current.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        corrections={"sha256": sha256(learned), "learned": data.learned, "held_out": held_out},
        chosen=chosen.name,
        figures={**chosen.sets, "old ones together": chosen.old},
        speed=speed,
        lost={name: len(found) for name, found in chosen.lost.items()},
    )


def _name(share: float) -> str:
    return "trained adapter" if share == 1 else f"mean {share:g}"


def adapter_path(work: Path, share: float) -> Path:
    """Where the adapter of a candidate is."""
    return work / f"adapter-{share:g}"


def read(work: Path, model: str, questions: str) -> dict[str, Any]:
    """What a model answered, as scripts/evaluate wrote it."""
    return dict(json.loads(_report(work, model, questions).read_text("utf-8")))


def read_people(work: Path, model: str) -> list[dict[str, Any]]:
    """What a model answered to people's questions, where there are any."""
    return [read(work, model, "people")] if _report(work, model, "people").is_file() else []


def _report(work: Path, model: str, questions: str) -> Path:
    return work / "reports" / f"{model}-{questions}.json"


def _base(base: str, work: Path) -> tuple[Path, list[Step]]:
    """The unquantized base: where it lies already, or steps that bring it."""
    here = ROOT / "weights" / base
    return (here, []) if (here / "config.json").is_file() else base_steps(base, work)


def _was_rounded(adapter: Path) -> bool:
    """Whether an adapter was trained with weights that were rounded as they are served."""
    path = adapter / RUN
    return path.is_file() and json.loads(path.read_text("utf-8"))["settings"].get("search") is not None


def _evaluations(model: str, options: ImproveOptions, version: Path, data: Data, work: Path) -> list[Step]:
    """The steps in which the version in a folder answers all questions."""
    files, whose = {"questions": data.questions}, "current version" if model == _CURRENT else _name(float(model))
    if options.adapter is None and task_name(options.weights) == "honeycomb" and (people := ROOT / _PEOPLE).is_file():
        files["people"] = people
    return [
        Step(
            f"{name} to {whose}",
            ("evaluate", str(path), *_asked(options, version), "--json", str(_report(work, model, name))),
            _report(work, model, name),
            2,
            ("--resume",),
        )
        for name, path in files.items()
    ]


def _answers(work: Path, model: str, data: Data) -> dict[str, Answers]:
    results = read(work, model, "questions")
    found = {name: Answers.of(results, lines) for name, lines in data.sets.items()}
    for results in read_people(work, model):
        found[PEOPLE] = Answers.of(results)
    return found
