"""Lets a chat model answer with schemas whose answers are checked, and counts how that ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engine import create_engine
from serving.errors import GrammarError, ServingError
from serving.grammar import answer_checks
from serving.model import Model
from serving.text.chat_template import ChatTemplate
from tasks.bounds import schema_constraint
from tasks.chat.options import ChatOptions
from tasks.chat.task import ChatTask
from tasks.errors import TaskError
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR

_SHOWN: Final = 600  # characters of the schema in the prompt


async def ask_checked(weights: Path, schemas: Iterable[Any], *, count: int, max_tokens: int) -> dict[str, Any]:
    """How greedy answers ended, for the first so many schemas whose answers are checked besides the grammar."""
    settings = Settings(weights_dir=weights, max_num_seqs=1)
    checkpoint = Checkpoint.of(settings)
    tokenizer = checkpoint.tokenizer
    task = ChatTask(ChatOptions(task="chat", name="asked"), tokenizer, ChatTemplate.from_dir(weights, tokenizer))
    model = Model(task, create_engine(settings, checkpoint), tokenizer)
    ends: Counter[str] = Counter()
    try:
        for schema in schemas:
            if ends.total() == count:
                break
            if _is_checked(schema):
                ends[await _end(model, schema, max_tokens)] += 1
    finally:
        model.close()
    return {"answers": ends.total(), "limit of tokens": max_tokens, **ends}


def _is_checked(schema: Any) -> bool:
    try:
        return answer_checks(schema_constraint(schema, ITEM_SEPARATOR, KEY_SEPARATOR)) is not None
    except GrammarError:
        return False


async def _end(model: Model, schema: Any, max_tokens: int) -> str:
    text = json.dumps(schema)
    prompt = f"Write one example of JSON data that follows this JSON Schema: {text[:_SHOWN]}"
    try:
        await model.answer(prompt=prompt, json_schema=text, temperature=0, max_tokens=max_tokens)
    except (ServingError, TaskError) as error:
        text = str(error)
        return "a keyword could not be met" if "could not be met" in text else f"error: {text.partition(':')[0]}"
    return "valid"
