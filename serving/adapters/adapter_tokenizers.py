"""The tokenizers of adapters that were trained with more tokens than the base's: prompts and answers have them.

The base's embedding often has more rows than its tokenizer has tokens. An added token that is one of these rows can be
read and written without another embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers

from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError
from serving.text.tokenizer import Tokenizer, num_logits, read_json

TOKENIZER: Final = "tokenizer.json"


def adapter_tokenizers(entries: Mapping[str, AdapterEntry], base: Path, tokenizer: Tokenizer) -> dict[str, Tokenizer]:
    """The tokenizers of those entries whose `task` folder has one with more tokens, by adapter.

    Args:
        entries: the list of adapters.
        base: folder of the base.
        tokenizer: of the base; its end tokens end the adapters' answers too.

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
    """What makes token ids; padding and truncation do not.

    Args:
        path: a tokenizer.json.

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
