"""Answers of an adapter that is not merged yet, without engine or grammar.

Owns: judging a checkpoint of a training run: base and adapter in fp32, greedy, whole batches.

    for answer in adapter_answers(Path("weights/base"), Path("build/adapter"), cases): ...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from honeycomb.prompt import build_prompt, check_nlq
from scripts.evaluation.answering import Answer
from scripts.evaluation.cases import Case
from scripts.training.adapter_file import adapter_config, load_adapter
from scripts.training.decode import greedy
from scripts.training.model import LoraLlama
from serving.text import Tokenizer

BATCH = 48
MAX_NEW_TOKENS = 256


def adapter_answers(base: Path, adapter: Path, cases: Sequence[Case]) -> Iterator[Answer]:
    """One answer a case, in their order."""
    config = adapter_config(adapter)
    model = LoraLlama.load(base, config["r"], config["lora_alpha"])
    load_adapter(model, adapter)
    tokenizer = Tokenizer.from_dir(base)
    (end,) = tokenizer.eos_token_ids
    for first in range(0, len(cases), BATCH):
        batch = cases[first : first + BATCH]
        start = time.perf_counter()
        prompts = [
            tokenizer.encode(build_prompt(check_nlq(c.nlq), c.columns, "columns-first")) for c in batch
        ]
        answers = greedy(model, prompts, end, MAX_NEW_TOKENS)
        seconds = (time.perf_counter() - start) / len(batch)
        for case, tokens in zip(batch, answers, strict=True):
            text = tokenizer.decode(tokens)
            yield Answer(case.line, text, text, seconds, len(tokens), len(tokens))
