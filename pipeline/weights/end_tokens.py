"""Tells which tokens end the answers of a checkpoint, and warns where its files name different ones."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from pipeline.weights.console import say
from serving.text.tokenizer import named_end_tokens


def tell_end_tokens(folder: Path) -> None:
    """Print the end tokens of a checkpoint that has a tokenizer.json, with the files that name them.

    Raises:
        WeightsError: a file names an end token by something else than an id.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file it cannot parse
        say(f"warning: {path} is not a tokenizer of the tokenizers library: {error}")
        return
    named = named_end_tokens(folder, backend)
    parts = (f"{', '.join(_shown(backend, i) for i in ids)} ({name})" for name, ids in named.items())
    say(f"End tokens: {'; '.join(parts) or 'none'}")
    if len({frozenset(ids) for ids in named.values()}) > 1:
        say(
            "warning: these files name different end tokens, and each special token among them ends an answer. If the "
            f"model writes one of them within answers, remove it from its file in {folder}"
        )


def _shown(backend: Tokenizer, token_id: int) -> str:
    return f"{backend.id_to_token(token_id) or 'no token'} = {token_id}"
