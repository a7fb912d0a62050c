"""Gets answers from an adapter and its base in fp32 by transformers and PEFT, without an engine or a grammar."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pipeline.evaluate.answering import CaseAnswer
from pipeline.weights.errors import CheckpointError
from serving.text import Tokenizer
from tasks.evaluation.cases import Case
from tasks.task import create_task

BATCH = 48
MAX_NEW_TOKENS = 256


def adapter_answers(
    base: Path, adapter: Path, task: Path, cases: Sequence[Case], usual_inputs: Mapping[str, Any]
) -> Iterator[CaseAnswer]:
    """One greedy answer for each case, in order.

    Args:
        base: folder of the unquantized base.
        adapter: the adapter's folder.
        task: folder of the base's tokenizer and the task file.
        cases: what is asked.
        usual_inputs: inputs that a case has unless it says otherwise.

    Raises:
        CheckpointError: the folder has no adapter.
        InputError: the task refuses a case.
    """
    config = adapter / "adapter_config.json"
    if not config.is_file():
        raise CheckpointError(f"{config} does not exist; give a folder that scripts/train_adapter wrote")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    tokenizer = Tokenizer.from_dir(base)
    asked, (end,) = create_task(task, tokenizer), tokenizer.eos_token_ids
    for first in range(0, len(cases), BATCH):
        batch = cases[first : first + BATCH]
        start = time.perf_counter()
        prompts = [asked.prepare({**usual_inputs, **case.inputs}).token_ids for case in batch]
        answers = _greedy(model, prompts, end)
        seconds = (time.perf_counter() - start) / len(batch)
        for case, tokens in zip(batch, answers, strict=True):
            text = tokenizer.decode(tokens)
            yield CaseAnswer(case.line, text, text, seconds, len(tokens), len(tokens))


@torch.no_grad()
def _greedy(model: Any, prompts: Sequence[Sequence[int]], end: int) -> list[list[int]]:
    """The likeliest tokens after each prompt, up to the end token, which is left out."""
    longest = max(map(len, prompts))
    rows = [[end] * (longest - len(p)) + list(p) for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    found = model.generate(
        input_ids=torch.tensor(rows),
        attention_mask=torch.tensor(mask),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )[:, longest:].tolist()
    return [tokens[: tokens.index(end)] if end in tokens else tokens for tokens in found]
