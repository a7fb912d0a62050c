"""From corrections to a better version: each step a command, resumed where it was stopped.

Files and folders beside the new version `weights/NAME`: `.NAME.improve` has what the steps leave until all are done,
`NAME.lock` the lock, `NAME.card.md` what changed, `NAME.confidence.json` how often fields were right by their
probability, `NAME.version.json` the record, `NAME.train` what the next
improvement starts from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pipeline.environment.waiting_lock import waiting_lock
from pipeline.evaluate.reliability import confidence_of, write_reliability
from pipeline.improve.card import card, lost, table
from pipeline.improve.choice import LIMIT, Answers, Candidate, choose
from pipeline.improve.data import PEOPLE, Data, kept_data, write_data
from pipeline.improve.lines import Correction
from pipeline.package.new_package import check_name
from pipeline.package.version import Share, VersionRecord
from pipeline.paths import ROOT
from pipeline.train.kept import Kept, find_kept, keep
from pipeline.train.lora_model import read_adapter_config
from pipeline.train.record import RUN
from pipeline.train.train_task import Step, base_steps, digest_of, do_steps, hardware, run_command, step_list
from pipeline.weights.atomic import place_file, replace_folder, write_json, write_text
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.task import TASK_FILE, task_name

SHARES: Final = (1.0, 0.75, 0.5)  # of the trained adapter in a candidate; the rest is the current one
_ADAPTER_SHARE, _DRAFTER_SHARE, _DRAFTER_MINUTES = 0.75, 0.25, 5.0  # of the minutes
_RATE, _EPOCHS, _PACKS = "3e-4", "2", "6"  # steps of fewer examples forget more (docs/log.md)
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
    """

    weights: Path
    out: Path
    replay: Path | None = None
    minutes: float = 20.0
    limit: float = LIMIT


class RefusedError(Exception):
    """No candidate is a better version; the table above says why."""


def improve(
    options: ImproveOptions, corrections: Sequence[Correction], call: Callable[[Sequence[str]], int] = run_command
) -> None:
    """Train candidates, choose one, and make it a version. Progress and the results go to the terminal.

    Args:
        options: what the user wants.
        corrections: that were accepted, in the order in which they were made.
        call: runs a command and returns its exit code.

    Raises:
        RefusedError: no candidate is better.
        CheckpointError: an input cannot be used, or a step failed; what was done stays.
        TaskError: the task file or a file of cases is wrong.
    """
    check_name(options.out.name)
    if not (options.weights / "config.json").is_file():
        raise CheckpointError(f"{options.weights} is no checkpoint; build or fetch it first: scripts/use_weights lists")
    work, kept = options.out.with_name(f".{options.out.name}.improve"), find_kept(ROOT, options.weights)
    if options.out.exists() and not (work / _PLACED).is_file():
        raise CheckpointError(f"{options.out} exists; give another --out")
    work.mkdir(parents=True, exist_ok=True)
    with waiting_lock(work / "lock", f"Waiting for another process that makes {options.out}"):
        data = write_data(work, options.weights, kept, corrections, options.replay, say)
        steps, last = plan(options, kept, data, work), last_steps(options, data, work)
        print("\n" + step_list([*steps, *last]))
        state, digest = work / "state.json", digest_of(data.folder, data.questions)
        _forget_others(work, steps, digest)
        do_steps(steps, state, digest, call, total=len(steps) + len(last))
        candidates = read_candidates(work, data)
        chosen = choose(candidates, options.limit)
        print("\n" + "\n".join(table(options.weights.name, candidates, options.limit)) + "\n")
        if chosen is None:
            closest = max(candidates, key=lambda one: one.old.low)
            print("\n".join(lost(closest)))
            raise RefusedError(
                f"no candidate is better, so {options.weights.name} stays as it is. More corrections help, or a higher "
                f"--limit; the candidates are in {work}"
            )
        say(f"Chosen: {chosen.name}")
        place(work / "candidates" / f"{chosen.share:g}" / options.out.name, options, work / _PLACED, chosen.share)
        do_steps(last, state, f"{digest} {chosen.name}", call, before=len(steps), total=len(steps) + len(last))
        speed = {name: read(work, name, "questions")["speed"] for name in (_CURRENT, _NEW)}
        about = (options.out.name, options.weights.name, chosen, candidates, data, speed)
        reports = [read(work, _NEW, "questions"), *read_people(work, f"{chosen.share:g}")]
        lines = (*card(*about, limit=options.limit), *write_reliability(options.out, confidence_of(*reports)))
        text = "\n".join(lines)
        write_text(options.out.with_name(f"{options.out.name}.card.md"), text)
        adapter, trained = adapter_path(work, chosen.share), adapter_path(work, 1)
        if chosen.share < 1 and (trained / RUN).is_file():  # it says how to train on
            shutil.copyfile(trained / RUN, adapter / RUN)
        keep(options.out, Kept(kept.base, adapter, kept.search, kept_data(data, kept, work / "kept-data")))
        record(options, data, chosen, speed).write(options.out)
        print(text + "\n\nNext:\n" + f"  scripts/versions promote {options.out.name}")
        shutil.rmtree(work)


def _forget_others(work: Path, steps: Sequence[Step], digest: str) -> None:
    """Remove what a run has made of other corrections or with other options; the commands do not replace it."""
    made_from = work / "made-from.json"
    now = [digest, *(list(step.words) for step in steps)]
    if made_from.is_file() and json.loads(made_from.read_text("utf-8")) != now:
        say("The corrections or the options are others than before, so all is made again")
        for path in (work / "candidates", work / "reports", *(adapter_path(work, share) for share in SHARES)):
            shutil.rmtree(path, ignore_errors=True)
        (work / _PLACED).unlink(missing_ok=True)
    write_json(made_from, now)


def plan(options: ImproveOptions, kept: Kept, data: Data, work: Path) -> list[Step]:
    """The steps up to the comparison, in order."""
    base, steps = _base(kept.base, work)
    config = read_adapter_config(kept.adapter)
    layers = sorted({str(name).rpartition(".")[2] for name in config.target_modules or ()})
    minutes = _ADAPTER_SHARE * options.minutes
    task_file = str(options.weights / TASK_FILE)
    train = (
        *("train_adapter", "--base", str(base), "--data", str(data.folder), "--task", task_file),
        *("--output", str(adapter_path(work, 1)), "--init", str(kept.adapter), "--minutes", f"{minutes:g}"),
        *("--epochs", _EPOCHS, "--rate", _RATE, "--rank", str(config.r), "--alpha", str(config.lora_alpha)),
        *("--targets", ",".join(layers), "--packs", _PACKS, *hardware()),
    )
    if kept.search is not None and _was_rounded(kept.adapter):
        train += ("--search", str(kept.search))
    steps.append(Step("adapter", train, adapter_path(work, 1) / "adapter_model.safetensors", minutes, ("--resume",)))
    files = {"questions": data.questions}
    if task_name(options.weights) == "honeycomb" and (people := ROOT / _PEOPLE).is_file():
        files["people"] = people
    steps += _evaluations(_CURRENT, options.weights, files, work)
    rounding = ("--unquantized",) if kept.search is None else ("--reuse-search", str(kept.search))
    for share in SHARES:
        adapter, folder = adapter_path(work, share), work / "candidates" / f"{share:g}" / options.out.name
        if share < 1:
            parts = (str(adapter_path(work, 1)), str(kept.adapter), "--weights", f"{share:g},{1 - share:g}")
            words = ("merge_adapters", *parts, "--method", "cat", "--max-rank", str(_MAX_RANK), "--out", str(adapter))
            steps.append(Step(_name(share), words, adapter / "adapter_config.json", 0.2))
        prepare = ("prepare", "--base", str(base), "--adapter", str(adapter), "--out", str(folder))
        prepare += ("--task-file", task_file, "--no-drafter", *rounding)
        steps.append(Step(f"{_name(share)}, as it will serve", prepare, folder / "config.json", 3))
        steps += _evaluations(f"{share:g}", folder, files, work)
    return steps


def last_steps(options: ImproveOptions, data: Data, work: Path) -> list[Step]:
    """The steps from the chosen candidate to a version."""
    out, minutes = options.out, min(_DRAFTER_MINUTES, _DRAFTER_SHARE * options.minutes)
    drafter = ("train_drafter", "--weights", str(out), "--from-predictions", str(data.drafts))
    lock, report = out.with_name(f"{out.name}.lock"), _report(work, _NEW, "questions")
    judge = ("evaluate", str(data.questions), "--weights", str(out), "--json", str(report))
    return [
        Step("draft model", (*drafter, "--minutes", f"{minutes:g}"), out / "config.json", minutes + 2),
        Step("lock", ("lock_weights", str(out), "--lock", str(lock)), lock, 0.1),
        Step("speed with its draft model", judge, report, 2, ("--resume",)),
    ]


def read_candidates(work: Path, data: Data) -> list[Candidate]:
    """What all candidates answered, compared with the current version."""
    before = _answers(work, _CURRENT, data)
    return [Candidate.of(_name(share), share, before, _answers(work, f"{share:g}", data)) for share in SHARES]


def place(candidate: Path, options: ImproveOptions, marker: Path, share: float) -> None:
    """Put a candidate at `options.out`, with the draft model and the context length of the current version.

    Nothing is done where `marker` says that it is there.
    """
    out, current = options.out, options.weights
    if out.is_dir() and marker.is_file() and json.loads(marker.read_text("utf-8")) == share:
        return
    staging = out.with_name(f".{out.name}.partial")
    shutil.rmtree(staging, ignore_errors=True)
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
    figures = {**chosen.sets, "old ones together": chosen.old}
    return VersionRecord(
        name=options.out.name,
        parent=options.weights.name,
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        corrections={"sha256": sha256(learned), "learned": data.learned, "held_out": held_out},
        chosen=chosen.name,
        figures={name: Share(**asdict(found)) for name, found in figures.items()},
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


def _evaluations(model: str, weights: Path, files: Mapping[str, Path], work: Path) -> list[Step]:
    return [
        Step(
            f"{name} to {'current version' if model == _CURRENT else _name(float(model))}",
            ("evaluate", str(path), "--weights", str(weights), "--json", str(_report(work, model, name))),
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
