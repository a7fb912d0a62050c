"""Synthetic tasks as pairs of prompt and answer, to learn from alone or beside the examples of a task."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from pipeline.train.draft_examples import Pair, WordRenamer
from pipeline.train.pretrain.tasks import Maker
from pipeline.train.pretrain.words import Words
from serving.drafting.draft_model import WordTokenizer
from serving.text import Tokenizer

_MAX_TOKENS: Final = 224  # of prompt and answer; memory and time of attention grow with the square
_DRAWN: Final = 3_000  # pairs that are learned beside a task's


def synthetic_pairs(tokenizer: Tokenizer, size: int, order: random.Random) -> Callable[[], Pair]:
    """Draws one of some thousand pairs, perhaps with other words. See `draw_pairs` for the arguments."""
    pairs = draw_pairs(tokenizer, size, _DRAWN, order)
    rename = WordRenamer(pairs, tokenizer, size, order)
    return lambda: rename(order.choice(pairs))


def draw_pairs(
    tokenizer: Tokenizer, size: int, count: int, order: random.Random, keys: Sequence[str] = ()
) -> list[Pair]:
    """So many prompts, in one part each, with their answers.

    Args:
        size: only tokens below are used.
        keys: see `Words`.
    """
    maker, word_tokens = Maker(Words(tokenizer, order, keys)), WordTokenizer(tokenizer)
    pairs: list[Pair] = []
    while len(pairs) < count:
        example = maker.make()
        prompt = [token for token in word_tokens(tokenizer.encode(example.prompt, add_bos=False)) if token < size]
        answer = tokenizer.encode(example.answer, add_bos=False)
        if prompt and len(prompt) + len(answer) <= _MAX_TOKENS:
            pairs.append(([prompt], answer))
    return pairs
