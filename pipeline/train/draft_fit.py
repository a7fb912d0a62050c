"""Start the network of a draft model and train it within a given time. No engine and no task is needed."""

from __future__ import annotations

import os
import random
import shutil
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional

from pipeline.train.draft_examples import Pair, batch_tensors, batches, make_pairs
from pipeline.train.draft_network import DraftNetwork
from pipeline.train.draft_transfer import shared_tokens, transfer
from pipeline.train.errors import NoDraftsError
from pipeline.weights.console import say
from serving.drafting.draft_model import WordTokenizer
from serving.drafting.load_drafter import read_input_embedding
from serving.text import Tokenizer
from serving.weights.draft_weights import MAX_TOKENS

TOKENIZER: Final = "tokenizer.json"
_CURVE_STEPS: Final = 100  # between two points of the recorded curve
_SYNTHETIC_SHARE: Final = 0.25  # of what is learned: examples of other tasks
_EXCHANGED_SHARE: Final = 0.6  # of the rest: examples with exchanged values
# From a draft model. After more epochs, fewer tokens of held-out answers are right.
_EPOCHS, _FEWEST_STEPS = 100, 200
_WARM_UP = 100  # steps
_CALIBRATION = 256  # held-out pairs that confidence is measured on
_FACTORS = tuple(0.95**i for i in range(-6, 31))  # 1.36 … 0.21
Report = Callable[[int, float, float, float], None]  # step, progress from 0 to 1, loss, fraction of right tokens
Curve = list[tuple[int, float, float]]  # step, loss, fraction of right tokens


def start_network(
    weights: Path, embedding: Tensor, size: int, layers: int, init: Path | None, init_weights: Path | None = None
) -> DraftNetwork:
    """A network with the checkpoint's embedding, initialized randomly or from a draft model.

    Args:
        weights: folder of the checkpoint.
        embedding: [V, H] of the checkpoint.
        size: width of the network.
        layers: number of its layers.
        init: a draft.model to start from; None starts from random weights.
        init_weights: folder of the checkpoint that `init` belongs to, if it has another base.

    Raises:
        TrainingError: `init` does not fit.
    """
    model = DraftNetwork(embedding, size=size, num_layers=layers)
    if init is not None and init_weights is not None:
        shared = shared_tokens(weights / TOKENIZER, init_weights / TOKENIZER)
        transfer(model, init, embedding=read_input_embedding(init_weights), shared=shared)
    elif init is not None:
        model.restore(init)
    if _can_compile():
        for layer in model.layers:
            layer.compile(dynamic=True)  # otherwise elementwise operations take half of the time
    else:
        say("without g++ and Python's headers the network is not compiled, and a step takes about twice as long")
    return model


def _can_compile() -> bool:
    """Whether there is what PyTorch compiles with; servers of vLLM often lack it."""
    compiler, headers = os.environ.get("CXX", "g++"), Path(sysconfig.get_path("include"))
    return shutil.which(compiler) is not None and (headers / "Python.h").is_file()


def read_pairs(
    examples: Sequence[tuple[Sequence[int], Sequence[int]]],
    markers: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    size: int,
    *,
    cut_answers: bool,
) -> list[Pair]:
    """The parts of prompts that a draft model reads, and the answers; says how many are too long.

    Args:
        examples: token ids of prompts and answers.
        markers: see `split_prompt`.
        tokenizer: of the prompts.
        size: number of the embedding's rows; a tokenizer may have more tokens.
        cut_answers: see `make_pairs`.

    Raises:
        NoDraftsError: none can be read.
    """
    words = WordTokenizer(tokenizer)

    def known_words(text: Sequence[int]) -> list[int]:
        return [token for token in words(text) if token < size]

    pairs = make_pairs(examples, markers, known_words, cut_answers=cut_answers)
    if not pairs:
        raise NoDraftsError(
            f"a draft model reads {MAX_TOKENS} tokens, and all examples have more behind the begin of their prompts"
        )
    if left_out := len(examples) - len(pairs):
        say(f"{left_out:,} of {len(examples):,} examples are too long: a draft model reads {MAX_TOKENS} tokens")
    return pairs


def fit(
    model: DraftNetwork,
    pairs: list[Pair],
    rename: Callable[[Pair], Pair],
    order: random.Random,
    *,
    minutes: float,
    batch: int,
    max_steps: int | None,
    is_started: bool,
    more: Sequence[Pair] = (),
    synthetic: Callable[[], Pair] | None = None,
    **options: Any,
) -> tuple[int, Curve]:
    """Train with a progress bar; return the number of steps and the loss curve. `train` has the other arguments.

    Args:
        model: trained in place.
        pairs: the examples.
        rename: gives an example other words.
        order: source of randomness.
        minutes: limit of the run.
        batch: examples in a step.
        max_steps: another limit of the run.
        is_started: whether the network began as another draft model; then it sees the examples for a limited number of
            epochs.
        more: examples with exchanged values, over half of what is learned of the task where there are any.
        synthetic: draws an example of another task, a quarter of what is learned.
        options: further arguments of `train`.
    """
    curve: Curve = []
    limits = [] if max_steps is None else [max_steps]
    if is_started:
        steps = max(_FEWEST_STEPS, _EPOCHS * len(pairs) // batch)
        limits.append(steps if synthetic is None else 2 * steps)  # other tasks keep it from learning them by heart

    def change(pair: Pair) -> Pair:
        if synthetic is not None and order.random() < _SYNTHETIC_SHARE:
            return synthetic()
        return rename(order.choice(more) if more and order.random() < _EXCHANGED_SHARE else pair)

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
            minutes=minutes,
            batch=batch,
            order=order,
            change=change,
            report=report,
            max_steps=min(limits, default=None),
            **options,
        )
    return steps, curve


def train(
    model: DraftNetwork,
    pairs: Sequence[Pair],
    *,
    minutes: float,
    rate: float,
    batch: int,
    order: random.Random,
    change: Callable[[Pair], Pair],
    report: Report,
    max_steps: int | None = None,
) -> int:
    """Train with a learning rate that decays to 0; return the number of steps.

    Args:
        model: trained in place.
        pairs: the examples.
        minutes: limit of the run after its first step, in which the network is compiled: minutes on a busy machine.
        rate: peak learning rate.
        batch: examples in a step.
        order: source of randomness.
        change: augments an example.
        report: called after each step.
        max_steps: another limit of the run.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    started, step, smooth_loss, smooth_hits = time.monotonic(), 0, 0.0, 0.0
    for examples in batches(pairs, batch, order):
        progress = (time.monotonic() - started) / (60 * minutes)
        if max_steps is not None:
            progress = max(progress, step / max_steps)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARM_UP) * (1 - progress)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_avx512_bf16_supported()):
            loss, hits = model.loss(*batch_tensors([change(pair) for pair in examples]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        weight = max(0.02, 1 / step)
        if step == 1:
            started = time.monotonic()
        smooth_loss += weight * (loss.item() - smooth_loss)
        smooth_hits += weight * (hits - smooth_hits)
        report(step, progress, smooth_loss, smooth_hits)
    return step


def calibrate(model: DraftNetwork, pairs: Sequence[Pair], batch: int) -> float:
    """Scale the logits so that confidence is as on answers that were not learned; return the factor.

    A network that has seen its examples often is surer than it is right, and would propose drafts that are not worth
    their rows. Source: temperature scaling (Guo et al. 2017).

    Args:
        model: changed in place.
        pairs: held-out pairs, of which the first 256 are used.
        batch: examples at a time.
    """
    some = pairs[:_CALIBRATION]
    with torch.no_grad():
        scored = [model.scored(*batch_tensors(some[i : i + batch])) for i in range(0, len(some), batch)]
        losses = {
            factor: sum(functional.cross_entropy(factor * x, right, reduction="sum").item() for x, right in scored)
            for factor in _FACTORS
        }
    factor = min(losses, key=losses.__getitem__)
    model.scale_logits(factor)
    return factor


def evaluate(model: DraftNetwork, pairs: Sequence[Pair], batch: int) -> tuple[float, float]:
    """(loss, fraction of right tokens), means over batches of held-out pairs, in float32."""
    results = []
    with torch.no_grad():
        for start in range(0, len(pairs), batch):
            loss, hits = model.loss(*batch_tensors(pairs[start : start + batch]))
            results.append((loss.item(), hits))
    losses, rights = zip(*results, strict=True)
    return sum(losses) / len(results), sum(rights) / len(results)
