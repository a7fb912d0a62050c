"""Read calibration texts as token ids; they should be prompts and answers of the real task."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.weights.errors import CheckpointError
from serving.text.tokenizer import named_end_tokens

BLOCK_TOKENS = 512  # the size of AutoAWQ's blocks


def calibration_tokens(file: Path, model: Path, max_tokens: int) -> list[list[int]]:
    """The token ids of the texts, each with one end token, in pieces of at most a block.

    Args:
        file: JSON lines {"text": …}.
        model: folder of the checkpoint.
        max_tokens: limit for all texts together.

    Raises:
        CheckpointError: a line has another form, the texts have less than one block of tokens, or the checkpoint
            names no end token.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    end = end_token(model)
    ends = {token_id for named in named_end_tokens(model, tokenizer).values() for token_id in named}

    def whole(text: str) -> list[int]:
        ids = model_text_ids(tokenizer, text)
        last = model_text_ids(tokenizer, text.rstrip())[-1:]  # a template may write a line break after the end token
        return ids if ends.intersection(last) else [*ids, end]

    return in_pieces(file, map(whole, read_texts(file)), max_tokens)


def model_text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of a text exactly as the model sees it: the words of special tokens are those tokens.

    A BOS that the text begins with is not added again.
    """
    ids = tokenizer.encode(text).ids
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    return plain if plain and ids[:2] == plain[:1] * 2 else ids


def in_pieces(file: Path, texts: Iterable[list[int]], max_tokens: int) -> list[list[int]]:
    """The first texts that fit the limit, each in pieces of at most a block.

    A text that does not fit is cut only where there would be less than a block without it.

    Args:
        file: the file that they come from, for errors.
        texts: token ids.
        max_tokens: limit for all texts together.

    Raises:
        CheckpointError: they have less than one block of tokens.
    """
    pieces: list[list[int]] = []
    room = max_tokens
    for whole in texts:
        if len(whole) > room and max_tokens - room >= BLOCK_TOKENS:
            break
        tokens = whole[:room]
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


def check_texts(file: Path) -> None:
    """Find what is wrong with a file of texts without a tokenizer, which may be gigabytes away.

    Raises:
        CheckpointError: a line has another form, or the texts have fewer bytes than a block has tokens.
    """
    num_bytes = sum(len(text.encode()) + 1 for text in read_texts(file))  # and an end token
    if num_bytes < BLOCK_TOKENS:
        raise CheckpointError(f"{file} gives at most {num_bytes} tokens, at least {BLOCK_TOKENS} are needed; add texts")


def end_token(model: Path) -> int:
    """The token that ends an answer: the tokenizer's, which a fine-tune brings, else the first that a file names.

    Raises:
        CheckpointError: no file names one.
    """
    named = list(named_end_tokens(model, Tokenizer.from_file(str(model / "tokenizer.json"))).items())
    if not named:
        raise CheckpointError(f"{model / 'config.json'} has no eos_token_id; write the id of the end token there")
    last_file, last_ids = named[-1]
    return last_ids[0] if last_file == "tokenizer_config.json" else named[0][1][0]
