"""Training a draft model within a given time.

Owns: the loop. Knows nothing of data or of how the model computes.

    train(model, pairs, minutes=20, rate=4e-3, batch=64, order=order, change=renamer, report=print)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch

from scripts.training.draft_examples import Pair, batch_tensors, batches
from scripts.training.draft_model import DraftModel

_WARM_UP = 100  # steps
Report = Callable[[int, float, float, float], None]  # step, share of the time, loss, share of right tokens


def train(
    model: DraftModel,
    pairs: Sequence[Pair],
    *,
    minutes: float,
    rate: float,
    batch: int,
    order: random.Random,
    change: Callable[[Pair], Pair],
    report: Report,
    most_steps: int | None = None,
) -> int:
    """Train until the time is over or all steps are made, the rate falling to 0; returns the steps made."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    started, step, smooth_loss, smooth_hits = time.monotonic(), 0, 0.0, 0.0
    for chosen in batches(pairs, batch, order):
        share = (time.monotonic() - started) / (60 * minutes)
        if most_steps is not None:
            share = max(share, step / most_steps)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARM_UP) * (1 - share)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, hits = model.loss(*batch_tensors([change(pair) for pair in chosen]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        weight = max(0.02, 1 / step)
        smooth_loss += weight * (loss.item() - smooth_loss)
        smooth_hits += weight * (hits - smooth_hits)
        report(step, share, smooth_loss, smooth_hits)
    return step


def evaluate(model: DraftModel, pairs: Sequence[Pair], batch: int) -> tuple[float, float]:
    """(loss, share of right tokens), means over batches of held-out pairs, in float32."""
    found = []
    with torch.no_grad():
        for start in range(0, len(pairs), batch):
            loss, hits = model.loss(*batch_tensors(pairs[start : start + batch]))
            found.append((loss.item(), hits))
    losses, rights = zip(*found, strict=True)
    return sum(losses) / len(found), sum(rights) / len(found)
