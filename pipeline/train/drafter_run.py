"""Train a draft model for a checkpoint or an adapter, and write it with a record of the run."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from pipeline.train.draft_answers import Drafted, Inputs, WrittenPrompt, ask, prepared, with_draft_model
from pipeline.train.draft_cases import AT_ONCE, Answers, CaseReader, DraftCase
from pipeline.train.draft_examples import (
    Pair,
    Renamer,
    WordRenamer,
    certain_trigrams,
    common_marker,
    frequent_tokens,
)
from pipeline.train.draft_exchange import EXCHANGED, exchanged
from pipeline.train.draft_fit import calibrate, evaluate, fit, read_pairs, start_network
from pipeline.train.draft_start import committed_start, draft_shape, embedding_signs, run_record
from pipeline.train.errors import NoDraftsError, TrainingError
from pipeline.train.pretrain.pairs import synthetic_pairs
from pipeline.train.record import describe_data, describe_hardware
from pipeline.weights.atomic import partial_file, write_json, write_text
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.drafting.draft_model import find_last
from serving.drafting.load_drafter import as_numpy, read_input_embedding
from serving.errors import ServingError
from serving.text import Tokenizer
from serving.weights.adapter_files import adapter_digest
from serving.weights.draft_weights import DRAFT_MODEL, HEAD_DIM, MAX_TOKENS, DraftWeights
from tasks.errors import TaskError
from tasks.task import MarkedTask, Task

_MINUTES, _MINUTES_FROM = 20.0, 5.0  # from scratch, and from a draft model
_MEASURED = 60  # held-out inputs that are asked
_ASKED_SHARE = 0.4  # of the minutes: the most for answers to prompts with exchanged values
_FEW = 600  # examples, with fewer of which synthetic tasks are learned too; more use the time better themselves
_KNOWN = 0.9  # fraction of the prompts that have a marker of the draft model that training goes on from


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """The settings of a run.

    Args:
        minutes: duration of the training, over which the learning rate decays to 0; None is 20, or 5 where it starts
            from a draft model.
        rate: peak learning rate.
        batch: examples in a step.
        size: width of the model, a multiple of 32.
        layers: number of layers.
        seed: of all random choices.
        init: a draft.model to start from, which may have fewer layers; None is that of an adapter's base, or else a
            committed one for the same embedding.
        init_weights: folder of the checkpoint that `init` belongs to, if it has another base.
        from_scratch: do not start from a committed one.
        continues: start from the draft model that is there, if there is one, and keep its size and where it reads.
        answers: whose answers are learned.
        max_steps: another limit of the training.
    """

    minutes: float | None
    rate: float
    batch: int
    size: int
    layers: int
    seed: int = 0
    init: Path | None = None
    init_weights: Path | None = None
    from_scratch: bool = False
    continues: bool = False
    answers: Answers = Answers.AUTO
    max_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Passes:
    """Mean passes of the model an answer, on the same held-out inputs, one at a time.

    Args:
        inputs: number of them.
        without: without a draft model.
        new: with the new draft model.
        old: with the draft model that was there before; None where there was none.
    """

    inputs: int
    without: float
    new: float
    old: float | None = None

    def has_fewest(self, *, replaces_old: bool) -> bool:
        """Whether the new draft model has fewer than none and, if it replaces the old one, than that."""
        return self.new < min(self.without, self.old if replaces_old and self.old is not None else self.without)


def train_drafter(
    data: Path, drafted: Drafted, output: Path, settings: DrafterSettings, report: Path | None = None
) -> bool:
    """Train a draft model; write it and its record (`run_record`) if it saves passes, and return whether it does.

    For prompts that no draft model can read it says so, and there is none.

    Args:
        data: see `CaseReader.read`.
        drafted: the checkpoint or adapter that it drafts for.
        output: folder for the draft model. If it is the one where `drafted` has its own, the new one must be better.
        settings: of the run.
        report: JSON file for what was measured, also where nothing is kept.

    Raises:
        CheckpointError: an input cannot be used; the message says why.
    """
    if settings.size % HEAD_DIM:
        raise CheckpointError(f"--size {settings.size}: a multiple of {HEAD_DIM}")
    try:
        return _train(data, drafted, output, settings, report)
    except NoDraftsError as error:
        say(f"no draft model is made: {error}")
        if report is not None:
            write_json(report, {"kept": False})
        return False
    except (TrainingError, ServingError, TaskError, SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(str(error)) from error


def _train(data: Path, drafted: Drafted, output: Path, settings: DrafterSettings, report: Path | None) -> bool:
    torch.manual_seed(settings.seed)
    tokenizer, embedding = drafted.tokenizer, read_input_embedding(drafted.weights)
    settings = _complete(settings, drafted, embedding)
    task, size = drafted.create_task(), len(embedding)
    cases, held_out = CaseReader(drafted, task, settings.answers).read(data)
    before = DraftWeights.load(settings.init, as_numpy(embedding)) if settings.continues and settings.init else None
    markers = _markers(cases, task, tokenizer, before)
    pairs, held_out_pairs = (_read_pairs(some, task, markers, tokenizer, size) for some in (cases, held_out))
    say(f"{len(pairs):,} examples to learn from, {len(held_out_pairs):,} held out")
    init_digest = None if settings.init is None else f"sha256:{sha256(settings.init)}"  # `output` may replace the file
    order, other = random.Random(settings.seed), settings.init_weights
    model = start_network(drafted.weights, embedding, settings.size, settings.layers, settings.init, other)
    # Where a task says its markers, names to copy are a part of their own.
    is_marked = isinstance(task, MarkedTask)
    rename = Renamer(pairs, tokenizer, order) if is_marked else WordRenamer(pairs, tokenizer, size, order)
    assert settings.minutes is not None, "_complete has set them"
    steps, curve = fit(
        model,
        pairs,
        rename,
        order,
        minutes=settings.minutes,
        rate=settings.rate,
        batch=settings.batch,
        max_steps=settings.max_steps,
        is_started=settings.init is not None,
        more=[] if is_marked else exchanged_pairs(cases, drafted, task, markers, size, order, settings.minutes),
        synthetic=synthetic_pairs(tokenizer, size, order) if len(pairs) < _FEW and not is_marked else None,
    )
    factor = calibrate(model, held_out_pairs, settings.batch)
    loss, hits = evaluate(model, held_out_pairs, settings.batch)
    say(f"{steps:,} steps; {hits:.1%} of the held-out answers' tokens are right; its logits are scaled by {factor:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / DRAFT_MODEL
        tokens = sorted({*frequent_tokens(pairs), *(() if before is None else before.answer_tokens)})
        model.save(made, markers=markers, answer_tokens=tokens, trigrams=certain_trigrams(pairs))
        passes = _measure(drafted, task, [case.inputs for case in held_out[-_MEASURED:]], made)
        is_kept = passes.has_fewest(replaces_old=settings.continues or output.resolve() == drafted.folder.resolve())
        if report is not None:
            measured = {"passes": asdict(passes), "examples": len(pairs), "steps": steps, "right": hits}
            write_json(report, {"kept": is_kept} | measured)
        if not is_kept:
            say("not kept, because it saves no passes; more examples, --minutes, or another --from may help")
            return False
        with partial_file(output / DRAFT_MODEL) as partial:
            shutil.copy(made, partial)  # with its mode
    record = {
        "settings": asdict(settings) | {"init": init_digest, "init_weights": other and other.name},
        "data": describe_data(data / "train.jsonl" if data.is_dir() else data, len(pairs)),
        "embedding": embedding_signs(embedding),
        "hardware": describe_hardware(),
        "steps": steps,
        "validation": {"loss": loss, "right": hits, "examples": len(held_out_pairs), "logits_scaled_by": factor},
        "passes": asdict(passes),
        "curve": curve,
    }
    write_text(run_record(output), json.dumps(record, indent=1) + "\n")
    say(f"wrote {output / DRAFT_MODEL}")
    if drafted.adapter is not None and output.resolve() == drafted.adapter.resolve():
        say(f"the digest of the adapter is {adapter_digest(output)} now")
    return True


def _complete(settings: DrafterSettings, drafted: Drafted, embedding: Tensor) -> DrafterSettings:
    """The settings with the draft model to start from, if one fits, and with the minutes."""
    init, size, layers = settings.init, settings.size, settings.layers
    if settings.continues and (drafted.folder / DRAFT_MODEL).is_file():
        init = drafted.folder / DRAFT_MODEL
        size, layers = draft_shape(init)
    elif init is None and not settings.from_scratch:
        settings, base = replace(settings, continues=False), drafted.weights / DRAFT_MODEL
        width, count = draft_shape(base) if drafted.adapter is not None and base.is_file() else (None, 0)
        if width == size and count <= layers:
            init = base
        else:
            init = committed_start(drafted.weights, embedding, size=size, layers=layers)
    if init is not None:
        say(f"starting from {init}")
    minutes = settings.minutes or (_MINUTES if init is None else _MINUTES_FROM)
    return replace(settings, init=init, size=size, layers=layers, minutes=minutes)


def _markers(
    cases: Sequence[DraftCase], task: Task, tokenizer: Tokenizer, before: DraftWeights | None
) -> list[list[int]]:
    if isinstance(task, MarkedTask):
        return [tokenizer.encode(marker, add_bos=False) for marker in task.draft_markers()]
    if before is not None:
        # Few prompts may begin alike by chance, and the draft model would not read others any more.
        known = [list(marker) for marker in before.markers]
        found = sum(any(find_last(case.prompt, marker) is not None for marker in known) for case in cases)
        if found >= _KNOWN * len(cases):
            return known
    return [common_marker([case.prompt for case in cases])]


def _read_pairs(
    cases: Sequence[DraftCase], task: Task, markers: Sequence[Sequence[int]], tokenizer: Tokenizer, size: int
) -> list[Pair]:
    """The pairs of cases. A task that says its markers has whole answers only.

    Raises:
        TrainingError: no case can be read, or a prompt has not all markers that its task says.
    """
    is_marked = isinstance(task, MarkedTask)
    if is_marked and any(find_last(case.prompt, marker) is None for case in cases for marker in markers):
        raise TrainingError("a prompt's tokens do not have all markers of the task")
    return read_pairs(_examples(cases), markers, tokenizer, size, cut_answers=not is_marked)


def _examples(cases: Sequence[DraftCase]) -> list[tuple[Sequence[int], Sequence[int]]]:
    return [(case.prompt, case.answer) for case in cases]


def _measure(drafted: Drafted, task: Task, inputs: Sequence[Inputs], made: Path) -> Passes:
    """Passes an answer on held-out inputs, one at a time, with the new draft model, without one, and with the old."""
    old = drafted.folder / DRAFT_MODEL
    models = {"without a draft model": None, "with the new draft model": made}
    if old.is_file():
        models["with the draft model that is there"] = old
    means: list[float] = []
    for name, model in models.items():
        with with_draft_model(drafted, model) as changed:
            replies = ask(changed, task, inputs, concurrency=1, title=name.capitalize())
        answered = [reply for reply in replies if reply is not None]
        means.append(sum(reply.passes for reply in answered) / len(answered))
        seconds = sum(reply.seconds for reply in answered) / len(answered)
        say(f"{name}: {means[-1]:.2f} passes and {1000 * seconds:.0f} ms an answer, {len(answered)} held-out inputs")
    return Passes(len(inputs), *means)


def exchanged_pairs(
    cases: Sequence[DraftCase],
    drafted: Drafted,
    task: Task,
    markers: Sequence[Sequence[int]],
    size: int,
    order: random.Random,
    minutes: float,
) -> list[Pair]:
    """Pairs with values exchanged between cases. Where the checkpoint answered the cases, it answers these too."""
    made = exchanged(_examples(cases), markers, drafted.tokenizer, order, count=EXCHANGED)
    examples = [(prompt, answer) for prompt, answer, _ in made]
    if made and all(case.is_own for case in cases):
        asked = [_with_prompt(task, cases[index].inputs, tuple(prompt)) for prompt, _, index in made]
        title = "Answering with exchanged values"
        replies = ask(drafted, task, asked, concurrency=AT_ONCE, title=title, minutes=_ASKED_SHARE * minutes)
        examples = [(reply.prompt, reply.answer) for reply in replies if reply is not None]
    return read_pairs(examples, markers, drafted.tokenizer, size, cut_answers=True) if examples else []


def _with_prompt(task: Task, inputs: Inputs, prompt: tuple[int, ...]) -> WrittenPrompt:
    """Another prompt that is answered like these inputs."""
    if isinstance(inputs, WrittenPrompt):
        return replace(inputs, token_ids=prompt)
    return WrittenPrompt(prompt, MAX_TOKENS, prepared(task, inputs).constraint)
