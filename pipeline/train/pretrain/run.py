"""Pretrain a draft model on synthetic tasks, and write it with a record of the run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from pipeline.prepare.record import DRAFT_RUN
from pipeline.train.draft_examples import WordRenamer, frequent_tokens
from pipeline.train.draft_fit import evaluate, train
from pipeline.train.draft_network import DraftNetwork
from pipeline.train.draft_start import embedding_signs
from pipeline.train.pretrain.pairs import draw_pairs
from pipeline.train.record import describe_data, describe_hardware
from pipeline.train.template_choice import choose_prompt
from pipeline.weights.console import say
from pipeline.weights.digest import sha256
from serving.drafting.load_drafter import read_input_embedding
from serving.grammar.schema_tree import walk
from serving.text import Tokenizer
from serving.weights.draft_weights import DRAFT_MODEL

_HELD_OUT: Final = 512
_CURVE_STEPS: Final = 100  # between two points of the recorded curve, and two reports


@dataclass(frozen=True, slots=True)
class PretrainSettings:
    """The settings of a run.

    Args:
        minutes: limit of the training, over which the learning rate decays to 0.
        examples: that are drawn; each is learned several times, with other words.
        rate: peak learning rate.
        batch: examples in a step.
        size: width of the model.
        seed: of all random choices.
        max_steps: another limit of the training.
        init: a draft.model for the same embedding to start from, which has learned to copy in one task.
    """

    minutes: float
    examples: int = 8_000
    rate: float = 4e-3
    batch: int = 64
    size: int = 128
    layers: int = 3
    seed: int = 0
    max_steps: int | None = None
    init: Path | None = None


def pretrain(weights: Path, output: Path, settings: PretrainSettings, schemas: Path | None = None) -> None:
    """Train a draft model for the embedding of a checkpoint; write draft.model and draft-run.json.

    Args:
        weights: folder of the checkpoint.
        output: folder for the results.
        schemas: JSONL of {"schema": JSON Schema}, whose names of keys are used beside words; None for words only.

    Raises:
        TrainingError: the checkpoint has no embedding, or `init` has another size.
    """
    torch.manual_seed(settings.seed)
    order = random.Random(settings.seed)
    tokenizer, embedding = Tokenizer.from_dir(weights), read_input_embedding(weights)
    keys = () if schemas is None else key_names(schemas)
    pairs = draw_pairs(tokenizer, len(embedding), settings.examples + _HELD_OUT, order, keys)
    pairs, held_out = pairs[:-_HELD_OUT], pairs[-_HELD_OUT:]
    model = DraftNetwork(embedding, size=settings.size, num_layers=settings.layers)
    if settings.init is not None:
        model.restore(settings.init)
    for layer in model.layers:
        layer.compile(dynamic=True)
    curve: list[tuple[int, float, float]] = []

    def report(step: int, fraction: float, loss: float, hits: float) -> None:
        if step % _CURVE_STEPS == 0:
            curve.append((step, round(loss, 4), round(hits, 4)))
            say(f"step {step}, {fraction:.0%} done: loss {loss:.3f}, {hits:.1%} of the tokens are right")

    steps = train(
        model,
        pairs,
        minutes=settings.minutes,
        rate=settings.rate,
        batch=settings.batch,
        order=order,
        change=WordRenamer(pairs, tokenizer, len(embedding), order),
        report=report,
        max_steps=settings.max_steps,
    )
    loss, hits = evaluate(model, held_out, settings.batch)
    say(f"{steps:,} steps; {hits:.1%} of the held-out answers' tokens are right")
    output.mkdir(parents=True, exist_ok=True)
    begin = tokenizer.encode(choose_prompt(()).template.partition("{")[0], add_bos=False)
    model.save(output / DRAFT_MODEL, markers=[begin], answer_tokens=frequent_tokens(pairs), trigrams=[])
    record = {
        "settings": asdict(settings) | {"init": settings.init and f"sha256:{sha256(settings.init)}"},
        "schemas": schemas and describe_data(schemas, len(keys)),
        "embedding": embedding_signs(embedding),
        "hardware": describe_hardware(),
        "steps": steps,
        "validation": {"loss": loss, "right": hits, "examples": len(held_out)},
        "curve": curve,
    }
    (output / DRAFT_RUN).write_text(json.dumps(record, indent=1) + "\n")
    say(f"wrote {output / DRAFT_MODEL}")


def key_names(path: Path) -> list[str]:
    """The names of properties in the schemas of a JSONL file, each once, sorted."""

    def names(node: Any) -> Iterator[str]:
        for _, part in walk(node):
            yield from part.get("properties", {})

    lines = path.read_text("utf-8").splitlines()
    found = {name for line in lines for name in names(json.loads(line)["schema"])}
    return sorted(name for name in found if any(map(str.isalpha, name)) and len(name) <= 40)
