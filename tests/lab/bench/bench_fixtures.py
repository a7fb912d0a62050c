"""Shared by the benchmark's tests: weights for the fake engine, and invented measurements."""

from __future__ import annotations

import json
import random
from pathlib import Path

from lab.bench.figures import Run
from lab.bench.protocol import Reply
from tests.pipeline.train.training_fixtures import CONFIG, byte_tokenizer


def write_weights(folder: Path) -> Path:
    """The files that the harness and the fake engine read; no tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 257}))
    profile = {"task": "honeycomb", "name": "toy", "prompt": "columns-first", "surface": "json"}
    (folder / "task.json").write_text(json.dumps(profile))
    return folder


def make_run(
    engine: str,
    seconds: float,
    *,
    workload: str = "one-new",
    number: int = 0,
    count: int = 20,
    noise: float = 0.05,
    variant: float | None = None,
    text: str = "",
) -> Run:
    """Requests that took about `seconds`, with noise, and 10 passes and 50 tokens each."""
    rng = random.Random(f"{engine} {seconds} {workload} {number}")
    took = [seconds * rng.uniform(1 - noise, 1 + noise) for _ in range(count)]
    replies = tuple(
        Reply(str(i), ttft=0.3 * e2e, e2e=e2e, input_tokens=400, output_tokens=50, passes=10, text=text)
        for i, e2e in enumerate(took)
    )
    return Run(workload, engine, number, variant, 1, sum(took), sum(took), replies)
