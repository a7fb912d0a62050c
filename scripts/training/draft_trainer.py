"""Training a draft model within a given time.

Owns: reading the data as the drafter will see it, and the loop. Knows nothing of how the model computes.

    pairs = read_pairs(Path("build/data/train.jsonl"), tokenizer, "columns-first")
    train(model, pairs, minutes=20, rate=4e-3, batch=64, seed=0, report=print)
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from honeycomb.profile import PromptTemplate
from honeycomb.prompt import QUESTION_MARKS, build_prompt
from scripts.training.draft_model import DraftModel, Pair, batch_tensors
from scripts.training.errors import AdapterError
from scripts.training.packing import read_examples
from serving.draft_model import find_last
from serving.draft_weights import MAX_TOKENS
from serving.text import Tokenizer

_WARM_UP = 100  # steps
_FREQUENT = 0.01  # of the answers have a token that may be drafted for any prompt
Report = Callable[[int, float, float, float], None]  # step, share of the time, loss, share of right tokens


def read_pairs(path: Path, tokenizer: Tokenizer, template: PromptTemplate) -> list[Pair]:
    """What is read of each prompt, and its answer. Longer ones than a draft model takes are left out.

    Raises:
        AdapterError: a prompt does not have the mark behind which it is to be read, or all are too long.
    """
    mark = tokenizer.encode(QUESTION_MARKS[template], add_bos=False)
    pairs = []
    for example in read_examples(path):
        # Columns before the question are not read: one stands for all.
        columns = example.cols if template == "question-first" else example.cols[:1]
        prompt = tokenizer.encode(build_prompt(example.nlq, columns, template))
        start = find_last(prompt, mark)
        if start is None:
            raise AdapterError(f"{path}: no {QUESTION_MARKS[template]!r} in the tokens of a prompt")
        answer = tokenizer.encode(example.query, add_bos=False)
        read = [tokenizer.without_space(token) for token in prompt[start:]]
        if len(read) + len(answer) <= MAX_TOKENS:
            pairs.append((read, answer))
    if not pairs:
        raise AdapterError(f"{path}: no example of at most {MAX_TOKENS} tokens to read")
    return pairs


def frequent_tokens(pairs: Sequence[Pair]) -> list[int]:
    """Tokens that stand in one of a hundred answers, ascending."""
    counts = Counter(token for _, answer in pairs for token in set(answer))
    return sorted(token for token, count in counts.items() if count >= _FREQUENT * len(pairs))


def train(
    model: DraftModel,
    pairs: Sequence[Pair],
    *,
    minutes: float,
    rate: float,
    batch: int,
    seed: int,
    report: Report,
    most_steps: int | None = None,
) -> int:
    """Train until the time is over or all steps are made, the rate falling to 0; returns the steps made."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    started, step, smooth_loss, smooth_hits = time.monotonic(), 0, 0.0, 0.0
    for chosen in _batches(pairs, batch, random.Random(seed)):
        share = (time.monotonic() - started) / (60 * minutes)
        if most_steps is not None:
            share = max(share, step / most_steps)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / _WARM_UP) * (1 - share)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, hits = model.loss(*batch_tensors(chosen))
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


def _batches(pairs: Sequence[Pair], size: int, order: random.Random) -> Iterator[list[Pair]]:
    """Pairs of about the same length together, in another order every time, without end."""
    lengths = [len(read) + len(answer) for read, answer in pairs]
    while True:
        places = sorted(range(len(pairs)), key=lambda place: lengths[place] + 20 * order.random())
        batches = [places[start : start + size] for start in range(0, len(places), size)]
        order.shuffle(batches)
        for chosen in batches:
            yield [pairs[place] for place in chosen]
