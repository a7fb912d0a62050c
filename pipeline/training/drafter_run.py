"""Train a draft model for a checkpoint, and write it with a record of the run."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pipeline.training.draft_examples import Pair, Renamer, certain_trigrams, frequent_tokens, read_pairs
from pipeline.training.draft_network import DraftModel
from pipeline.training.draft_trainer import evaluate, train
from pipeline.training.draft_transfer import shared_tokens, transfer
from pipeline.training.errors import AdapterError
from pipeline.training.record import describe_data, describe_hardware
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from pipeline.weights.errors import CheckpointError
from serving.text import Tokenizer
from serving.weights.draft_weights import DRAFT_MODEL, HEAD_DIM
from tasks.errors import TaskError
from tasks.honeycomb.options import HoneycombOptions
from tasks.honeycomb.prompt import DRAFT_MARKERS

TOKENIZER = "tokenizer.json"
EMBEDDING = "model.embed_tokens.weight"
_CURVE_STEPS = 100  # between two points of the recorded curve
Curve = list[tuple[int, float, float]]  # step, loss, fraction of right tokens


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """The settings of a run.

    Args:
        minutes: duration of the run, over which the learning rate decays to 0.
        rate: peak learning rate.
        batch: questions in a step.
        size: width of the model, a multiple of 32.
        layers: number of layers.
        seed: of all random choices.
        init: a draft.model to start from, which may have fewer layers.
        init_weights: folder of the checkpoint that `init` belongs to, if it has another base.
    """

    minutes: float
    rate: float
    batch: int
    size: int
    layers: int
    seed: int = 0
    init: Path | None = None
    init_weights: Path | None = None


def train_drafter(data: Path, weights: Path, output: Path, settings: DrafterSettings) -> None:
    """Train a draft model, and write draft.model and draft-run.json.

    Args:
        data: folder of train.jsonl and validation.jsonl, from scripts/make_data.
        weights: folder of the checkpoint that it drafts for.
        output: folder for the results.
        settings: of the run.

    Raises:
        CheckpointError: an input cannot be used; the message says why.
    """
    if settings.size % HEAD_DIM:
        raise CheckpointError(f"--size {settings.size}: a multiple of {HEAD_DIM}")
    try:
        _train(data, weights, output, settings)
    except (AdapterError, TaskError, SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(str(error)) from error


def _train(data: Path, weights: Path, output: Path, settings: DrafterSettings) -> None:
    torch.manual_seed(settings.seed)
    tokenizer, options = Tokenizer.from_dir(weights), HoneycombOptions.load(weights)
    pairs = read_pairs(data / "train.jsonl", tokenizer, options.prompt)
    held_out = read_pairs(data / "validation.jsonl", tokenizer, options.prompt)
    say(f"{len(pairs):,} questions to learn from, {len(held_out):,} held out")
    init_digest = None if settings.init is None else f"sha256:{sha256(settings.init)}"  # `output` may replace the file
    model = _make_model(weights, settings)
    steps, curve = _run(model, pairs, tokenizer, settings)
    output.mkdir(parents=True, exist_ok=True)
    model.save(
        output / DRAFT_MODEL,
        markers=[tokenizer.encode(marker, add_bos=False) for marker in DRAFT_MARKERS[options.prompt]],
        answer_tokens=frequent_tokens(pairs),
        trigrams=certain_trigrams(pairs),
    )
    loss, hits = evaluate(model, held_out, settings.batch)
    other = settings.init_weights
    record = {
        "settings": asdict(settings) | {"init": init_digest, "init_weights": other and other.name},
        "data": describe_data(data / "train.jsonl", len(pairs)),
        "hardware": describe_hardware(),
        "steps": steps,
        "validation": {"loss": loss, "right": hits, "examples": len(held_out)},
        "curve": curve,
    }
    (output / "draft-run.json").write_text(json.dumps(record, indent=1) + "\n")
    say(f"{steps:,} steps; {hits:.1%} of the held-out answers' tokens are right; wrote {output / DRAFT_MODEL}")


def _make_model(weights: Path, settings: DrafterSettings) -> DraftModel:
    """A model with the checkpoint's embedding, initialized randomly or from a file."""
    model = DraftModel(_embedding(weights), size=settings.size, num_layers=settings.layers)
    other = settings.init_weights
    if settings.init is not None and other is not None:
        shared = shared_tokens(weights / TOKENIZER, other / TOKENIZER)
        transfer(model, settings.init, embedding=_embedding(other), shared=shared)
    elif settings.init is not None:
        model.restore(settings.init)
    for layer in model.layers:
        layer.compile(dynamic=True)  # otherwise elementwise operations take half of the time
    return model


def _embedding(weights: Path) -> Tensor:
    with safe_open(weights / "model.safetensors", "pt") as file:
        tensor: Tensor = file.get_tensor(EMBEDDING)
    return tensor


def _run(model: DraftModel, pairs: list[Pair], tokenizer: Tokenizer, settings: DrafterSettings) -> tuple[int, Curve]:
    """Train with a progress bar; return the number of steps and the loss curve."""
    order = random.Random(settings.seed)
    curve: Curve = []
    columns: tuple[Any, ...] = (
        "{task.description}",
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("Training", total=1.0, state="")

        def report(step: int, fraction: float, loss: float, hits: float) -> None:
            progress.update(task, completed=fraction, state=f"step {step} loss {loss:.3f} right {hits:.1%}")
            if step % _CURVE_STEPS == 0:
                curve.append((step, round(loss, 4), round(hits, 4)))

        steps = train(
            model,
            pairs,
            minutes=settings.minutes,
            rate=settings.rate,
            batch=settings.batch,
            order=order,
            change=Renamer(pairs, tokenizer, order),
            report=report,
        )
    return steps, curve
