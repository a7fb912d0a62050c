"""Write the files beside a merged checkpoint's tensors: configuration, tokenizer, chat templates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import write_json
from pipeline.weights.errors import CheckpointError

_COPIED = {".json", ".jinja", ".model", ".txt"}  # configurations, tokenizers, templates
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # any of them is a whole tokenizer
_OF_TOKENIZER = {
    *("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    *("tokenizer_config.json", "chat_template.jinja", "chat_template.json"),
}
_TEMPLATES = "additional_chat_templates"
_CONFIG = "tokenizer_config.json"


def write_companions(base: Path, adapter: Path, folder: Path) -> None:
    """Copy the base's files; a tokenizer or a chat template that the adapter has takes the place of the base's."""
    for path in sorted(base.iterdir()):
        if path.is_file() and path.suffix in _COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    _copy_templates(base, folder)
    its = [path for path in sorted(adapter.iterdir()) if path.is_file() and path.name in _OF_TOKENIZER]
    if any(path.name in _TOKENIZERS for path in its):
        for name in _OF_TOKENIZER:  # files of two tokenizers do not fit together
            if not (name.startswith("chat_template") and not _has_template(adapter)):
                (folder / name).unlink(missing_ok=True)
    elif _has_template(adapter):
        for path in folder.glob("chat_template.*"):
            path.unlink()
    for path in its:
        shutil.copyfile(path, folder / path.name)
    if (adapter / _TEMPLATES).is_dir():
        shutil.rmtree(folder / _TEMPLATES, ignore_errors=True)
        _copy_templates(adapter, folder)
    if not _has_template(folder) and (template := _read(base / _CONFIG).get("chat_template")) is not None:
        write_json(folder / _CONFIG, {**_read(folder / _CONFIG), "chat_template": template})


def copy_common(adapters: Sequence[Path], folder: Path) -> None:
    """Copy the tokenizer, the chat template and the task file that adapters have, which must be the same.

    Raises:
        CheckpointError: two adapters have different ones.
    """
    for name in sorted({*_OF_TOKENIZER, "task.json"}):
        owners = [adapter / name for adapter in adapters if (adapter / name).is_file()]
        for path in owners[1:]:
            if path.read_bytes() != owners[0].read_bytes():
                raise CheckpointError(f"{path} differs from {owners[0]}; remove both if they have no effect")
        if owners:
            shutil.copyfile(owners[0], folder / name)


def write_config(config: dict[str, Any], folder: Path, *, untied: bool, vocabulary: int | None) -> None:
    """Write config.json with what the merge has changed."""
    changes: dict[str, Any] = {"tie_word_embeddings": False} if untied else {}
    if vocabulary is not None:
        changes["vocab_size"] = vocabulary
    text = config.get("text_config")
    inner = {key: value for key, value in changes.items() if isinstance(text, dict) and key in text}
    outer = {key: value for key, value in changes.items() if key not in inner or key in config}
    result = {**config, **outer}
    if isinstance(text, dict) and inner:
        result["text_config"] = {**text, **inner}
    write_json(folder / "config.json", result)


def check_tokenizer(base: Path, adapter: Path, rows: int | None) -> None:
    """Check that the embedding has a row for each token of the tokenizer that the result will have.

    Raises:
        CheckpointError: it has not, or tokenizer.json is damaged.
    """
    path = next((folder / _TOKENIZERS[0] for folder in (adapter, base) if (folder / _TOKENIZERS[0]).exists()), None)
    if path is None or rows is None:
        return
    try:
        tokenizer = json.loads(path.read_text("utf-8"))
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        highest = max([*ids, *(token["id"] for token in tokenizer.get("added_tokens", []))], default=-1)
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); fetch it again") from error
    if highest >= rows:
        raise CheckpointError(
            f"{path} has tokens up to {highest}, but the merged embedding only {rows} rows; the adapter was saved "
            "without its resized embedding (save_embedding_layers=True)"
        )


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return "chat_template" in _read(folder / _CONFIG)


def _read(config: Path) -> dict[str, Any]:
    """The content of a tokenizer's configuration; empty where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        content = json.loads(config.read_text("utf-8")) if config.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{config} is damaged ({error!r}); fetch it again") from error
    return content if isinstance(content, dict) else {}


def _copy_templates(source: Path, folder: Path) -> None:
    for path in sorted((source / _TEMPLATES).glob("*.jinja")):
        (folder / _TEMPLATES).mkdir(exist_ok=True)
        shutil.copyfile(path, folder / _TEMPLATES / path.name)
