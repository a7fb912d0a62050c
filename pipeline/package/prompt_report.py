"""Tells what the model will read: the prompt of one example, as text and as token ids."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from pipeline.package.example_inputs import example_of, task_and_inputs
from pipeline.weights.console import say
from pipeline.weights.end_tokens import tell_end_tokens
from serving.text import Tokenizer
from tasks.task import create_task


def tell_prompt(weights: Path) -> None:
    """Print the end tokens, an example's prompt with its control tokens, and the prompt's ids.

    Raises:
        TaskError: the task does not suit the checkpoint.
    """
    tokenizer = Tokenizer.from_dir(weights)
    ids = create_task(weights, tokenizer).prepare(dict(example_of(*task_and_inputs(weights)))).token_ids
    text = tokenizers.Tokenizer.from_str(tokenizer.to_json()).decode(list(ids), skip_special_tokens=False)
    tell_end_tokens(weights)
    say(f"The prompt of an example:\n{text}\nThese are the tokens {list(ids)}")
