"""Train a draft model within a given time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from pipeline.train.draft_examples import Pair, batch_tensors, batches
from pipeline.train.draft_network import DraftNetwork

_WARM_UP = 100  # steps
_CALIBRATION = 256  # held-out pairs that confidence is measured on
_FACTORS = tuple(0.95**i for i in range(-6, 31))  # 1.36 … 0.21
Report = Callable[[int, float, float, float], None]  # step, progress from 0 to 1, loss, fraction of right tokens


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
