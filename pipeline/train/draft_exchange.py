"""More examples for a draft model: values that answers copy from their prompts, exchanged between examples.

A few hundred examples have few values, which are learned by heart. Another example's value of the same field, in prompt
and answer alike, makes one with the same structure. It is a mix of two examples like CutMix (Yun et al. 2019), for
fields of JSON.

    more = exchanged([(prompt, answer), …], markers, tokenizer, random.Random(0), count=3_000)
    prompt, answer, index = more[0]  # made of example `index`
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from serving.drafting.draft_model import WordTokenizer, find_last
from serving.text import Tokenizer

EXCHANGED = 3_000  # examples that are made to learn from
_KEPT = 0.3  # fraction of the values that are not exchanged
_ATTEMPTS = 10  # for each wanted example
Tokens = Sequence[int]
Field = tuple[str, ...]  # the keys on the way to a value; items of an array have the array's


@dataclass(frozen=True, slots=True)
class _Example:
    """The prompt's text behind its fixed begin, and the values that the answer copies from it, each once."""

    begin: Tokens
    text: str
    answer: str
    copied: Sequence[tuple[Field, str]]


def exchanged(
    examples: Sequence[tuple[Tokens, Tokens]],
    markers: Sequence[Tokens],
    tokenizer: Tokenizer,
    order: random.Random,
    *,
    count: int,
) -> list[tuple[Tokens, Tokens, int]]:
    """Token ids of up to `count` prompts and answers, each with the index of the example that it was made of.

    There are fewer or none where answers are no JSON or copy little.

    Args:
        examples: token ids of prompts and answers.
        markers: after the last of the first one found in a prompt, it varies.
    """
    words = WordTokenizer(tokenizer)
    read = (_read(prompt, answer, markers, tokenizer, words) for prompt, answer in examples)
    known = [(index, one) for index, one in enumerate(read) if one is not None]
    values: dict[Field, list[str]] = {}
    for _, one in known:
        for field, value in one.copied:
            values.setdefault(field, []).append(value)
    made: list[tuple[Tokens, Tokens, int]] = []
    for _ in range(_ATTEMPTS * count if known else 0):
        index, one = order.choice(known)
        text, answer = one.text, one.answer
        for field, value in one.copied:
            other = order.choice(values[field])
            if order.random() >= _KEPT and text.count(value) == answer.count(_quoted(value)) == 1:
                text, answer = text.replace(value, other), answer.replace(_quoted(value), _quoted(other))
        if answer != one.answer:
            prompt = [*one.begin, *tokenizer.encode(text, add_bos=False)]
            made.append((prompt, tokenizer.encode(answer, add_bos=False), index))
        if len(made) == count:
            break
    return made


def _read(
    prompt: Tokens, answer: Tokens, markers: Sequence[Tokens], tokenizer: Tokenizer, words: WordTokenizer
) -> _Example | None:
    """None if the answer copies nothing, or if text and tokens of the prompt differ."""
    start = next((at for marker in markers if (at := find_last(prompt, marker)) is not None), None)
    if start is None:
        return None
    text, written = tokenizer.decode(prompt[start:]), tokenizer.decode(answer)
    parsed: Any = None
    with suppress(ValueError):
        parsed = json.loads(written)
    copied = [
        (field, value)
        for field, value in _strings(parsed, ())
        if len(value) > 1 and text.count(value) == written.count(_quoted(value)) == 1
    ]
    if not copied or words(tokenizer.encode(text, add_bos=False)) != words(prompt[start:]):
        return None
    return _Example(prompt[:start], text, written, copied)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _strings(node: Any, field: Field) -> Iterator[tuple[Field, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _strings(value, (*field, key))
    elif isinstance(node, list):
        for item in node:
            yield from _strings(item, field)
    elif isinstance(node, str):
        yield field, node
