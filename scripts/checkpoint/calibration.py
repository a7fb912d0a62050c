"""Calibration texts: what the model reads and writes in its real work.

Owns: reading them and cutting them into token ids. Knows nothing of the search.

    texts = calibration_tokens(Path("calibration.jsonl"), Path("weights/merged"), max_tokens=8192)
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from .errors import CheckpointError

BLOCK_TOKENS = 512  # AutoAWQ computes on blocks of this many


def calibration_tokens(file: Path, model: Path, max_tokens: int) -> list[list[int]]:
    """Token ids of the texts, each ended by the model's end token, in pieces of at most a block."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # text stays text
    end = _end_token(model)
    texts: list[list[int]] = []
    room = max_tokens
    for text in _read(file):
        tokens = [*tokenizer.encode(text).ids, end]
        if len(tokens) > room:
            break
        # AutoAWQ drops what is longer than a block, and joins what is not.
        texts += [tokens[begin : begin + BLOCK_TOKENS] for begin in range(0, len(tokens), BLOCK_TOKENS)]
        room -= len(tokens)
    if max_tokens - room < BLOCK_TOKENS:
        raise CheckpointError(
            f"{file} gives {max_tokens - room} tokens, at least {BLOCK_TOKENS} are needed; add texts"
        )
    return texts


def _read(file: Path) -> list[str]:
    texts = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            texts.append(str(json.loads(line)["text"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f'{file}, line {number}: expected {{"text": "…"}}: {error!r}') from error
    return texts


def _end_token(model: Path) -> int:
    value = json.loads((model / "config.json").read_text("utf-8"))["eos_token_id"]
    return int(value[0] if isinstance(value, list) else value)
