"""What an adapter brings beside its matrices: a tokenizer with more tokens, and files that must be as the base's.

The base's embedding often has more rows than its tokenizer has tokens. An added token that is one of these rows can be
read and written without another embedding. An adapter that was trained with another prompt or vocabulary than the
base's is refused: its answers would be wrong, and nobody would see why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, WeightsError
from serving.text.template_files import read_templates
from serving.text.tokenizer import Tokenizer, num_logits, read_json

TOKENIZER: Final = "tokenizer.json"


def adapter_tokenizers(entries: Mapping[str, AdapterEntry], base: Path, tokenizer: Tokenizer) -> dict[str, Tokenizer]:
    """The tokenizers of those entries whose `task` folder has one with more tokens, by adapter.

    The end tokens of the base's `tokenizer` end the adapters' answers too.

    Raises:
        AdapterError: a tokenizer is no extension of the base's, or has a token for which the base has no row.
    """
    found: dict[str, Tokenizer] = {}
    for name, entry in entries.items():
        path = None if entry.task is None else entry.task / TOKENIZER
        if path is None or not path.is_file() or vocabulary(path) == vocabulary(base / TOKENIZER):
            continue
        try:
            _check_extends(path, base)
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a file that it cannot parse
            raise AdapterError(f"adapter {name!r}: task: {path} cannot be used: {error}") from error
        found[name] = Tokenizer(backend, eos_token_ids=tokenizer.eos_token_ids, context_length=tokenizer.context_length)
    return found


def vocabulary(path: Path) -> tuple[Any, Any]:
    """What makes the token ids of a tokenizer.json; padding and truncation do not.

    Returns:
        The model, and the list of added tokens.
    """
    content = read_json(path)
    model = dict(content.get("model") or {})
    # Newer versions of tokenizers write the merge of two tokens as a list, older ones as a text with a space.
    model["merges"] = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges") or ()]
    return model, content.get("added_tokens")


def _check_extends(path: Path, base: Path) -> None:
    own, known = vocabulary(path), vocabulary(base / TOKENIZER)
    if own[0] != known[0]:
        raise AdapterError("its vocabulary differs from the base's; only added tokens may")
    listed = list(known[1] or ())
    if missing := [token for token in listed if token not in own[1]]:
        raise AdapterError(f"the base's added token {missing[0].get('content')!r} is missing or has other options")
    if (rows := num_logits(base)) is None:
        raise AdapterError(f"{base / 'config.json'} has no vocab_size, so nobody knows the rows of its embedding")
    for token in own[1]:
        if token not in listed and not token["id"] < rows:
            raise AdapterError(
                f"the token {token['content']!r} has the id {token['id']}, and the base's embedding has {rows:,} rows; "
                "merge the adapter and serve the result by itself (scripts/merge_lora)"
            )
    taken = {*known[0].get("vocab", {}).values(), *(token["id"] for token in listed)}
    if again := [token for token in own[1] if token not in listed and token["id"] in taken]:
        raise AdapterError(f"the token {again[0]['content']!r} has the id {again[0]['id']}, which another token has")


_TASK: Final = "task.json"
_REMEDY: Final = (
    "the operator can set `task` in adapters.yaml to a folder with the same file, merge the adapter and serve the "
    "result by itself (scripts/merge_lora), or remove the file if it has no effect"
)
_VOCABULARY_REMEDY: Final = (
    "if it only adds tokens, the operator can set `task` in adapters.yaml to a folder with the same file; else merge "
    "it and serve the result by itself (scripts/merge_lora)"
)


def check_companions(folder: Path, task: Path, *, base: Path) -> None:
    """Compare an adapter's chat template, task file and vocabulary, where it has them, with those in use.

    These are in the folder `task`, which makes its prompts, or what is missing there in the folder of the base.

    Raises:
        WeightsError: they differ.
    """
    templates = read_templates(folder)
    if templates and templates != (read_templates(task) or read_templates(base)):
        raise WeightsError(f"{folder} has a chat template, which differs from the base's; {_REMEDY}")
    for name, read, remedy in ((TOKENIZER, vocabulary, _VOCABULARY_REMEDY), (_TASK, read_json, _REMEDY)):
        own = folder / name
        if own.is_file() and not _same(own, (task if (task / name).is_file() else base) / name, read):
            raise WeightsError(f"{folder} has its own {name}, which differs from the base's; {remedy}")


def _same(own: Path, base: Path, read: Callable[[Path], Any]) -> bool:
    """Parsing takes long for a large vocabulary, and other threads wait; most adapters have a copy of the base's."""
    return (base.is_file() and own.read_bytes() == base.read_bytes()) or read(own) == read(base)
