"""Read calibration texts as token ids; they should be prompts and answers of the real task."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from .errors import CheckpointError

BLOCK_TOKENS = 512  # the size of AutoAWQ's blocks


def calibration_tokens(file: Path, model: Path, max_tokens: int) -> list[list[int]]:
    """Token ids of the texts, each with the model's end token, in pieces of at most a block.

    Args:
        file: JSON lines {"text": …}.
        model: folder of the checkpoint.
        max_tokens: limit for all texts together.

    Raises:
        CheckpointError: a line has another form, or the texts have less than one block of tokens.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # text never becomes special tokens
    end = end_token(model)
    return in_pieces(file, ([*tokenizer.encode(text).ids, end] for text in read_texts(file)), max_tokens)


def in_pieces(file: Path, texts: Iterable[list[int]], max_tokens: int) -> list[list[int]]:
    """The first texts that fit the limit, each in pieces of at most a block.

    Args:
        file: that they come from, for errors.
        texts: token ids.
        max_tokens: limit for all texts together.

    Raises:
        CheckpointError: they have less than one block of tokens.
    """
    pieces: list[list[int]] = []
    room = max_tokens
    for tokens in texts:
        if len(tokens) > room:
            break
        # AutoAWQ drops texts that are longer than a block, and joins shorter ones.
        pieces += [tokens[begin : begin + BLOCK_TOKENS] for begin in range(0, len(tokens), BLOCK_TOKENS)]
        room -= len(tokens)
    if max_tokens - room < BLOCK_TOKENS:
        raise CheckpointError(f"{file} gives {max_tokens - room} tokens, at least {BLOCK_TOKENS} are needed; add texts")
    return pieces


def read_texts(file: Path) -> list[str]:
    """The texts of JSON lines {"text": …}.

    Raises:
        CheckpointError: a line has another form.
    """
    texts = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            texts.append(str(json.loads(line)["text"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f'{file}, line {number}: expected {{"text": "…"}}: {error!r}') from error
    return texts


def end_token(model: Path) -> int:
    """The token that ends an answer: the first `eos_token_id` of config.json.

    Raises:
        CheckpointError: config.json has none.
    """
    value = json.loads((model / "config.json").read_text("utf-8")).get("eos_token_id")
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, int):
        raise CheckpointError(
            f"{model / 'config.json'} has eos_token_id {value!r}; write the id of the end token there"
        )
    return value
