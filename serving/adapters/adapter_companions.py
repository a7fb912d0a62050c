"""Refuse an adapter that was trained with another prompt or vocabulary than the base's.

Answers would be wrong, and nobody would see why. Files that say the same as the base's are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from serving.errors import WeightsError
from serving.text.template_files import read_templates
from serving.text.tokenizer import read_json

_TOKENIZER: Final = "tokenizer.json"
_TASK: Final = "task.json"
_REMEDY: Final = (
    "the operator can set `task` in adapters.yaml to a folder with the same file, merge the adapter and serve the "
    "result by itself (scripts/merge_lora), or remove the file if it has no effect"
)
_VOCABULARY_REMEDY: Final = "merge it and serve the result by itself (scripts/merge_lora)"


def check_companions(folder: Path, task: Path, *, base: Path) -> None:
    """Compare an adapter's chat template, task file and vocabulary, where it has them, with those in use.

    Args:
        folder: of the adapter.
        task: folder of the task file and the chat template that make its prompts.
        base: folder of the base, whose vocabulary is used.

    Raises:
        WeightsError: they differ.
    """
    templates = read_templates(folder)
    if templates and templates != (read_templates(task) or read_templates(base)):
        raise WeightsError(f"{folder} has a chat template, which differs from the base's; {_REMEDY}")
    for name, used, read, remedy in (
        (_TOKENIZER, base, _vocabulary, _VOCABULARY_REMEDY),
        (_TASK, task, read_json, _REMEDY),
    ):
        own = folder / name
        if own.is_file() and not _same(own, (used if (used / name).is_file() else base) / name, read):
            raise WeightsError(f"{folder} has its own {name}, which differs from the base's; {remedy}")


def _same(own: Path, base: Path, read: Callable[[Path], Any]) -> bool:
    """Parsing takes long for a large vocabulary, and other threads wait; most adapters have a copy of the base's."""
    return (base.is_file() and own.read_bytes() == base.read_bytes()) or read(own) == read(base)


def _vocabulary(path: Path) -> tuple[Any, Any]:
    """What makes token ids; padding and truncation do not."""
    content = read_json(path)
    model = dict(content.get("model") or {})
    # Newer versions of tokenizers write the merge of two tokens as a list, older ones as a text with a space.
    model["merges"] = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges") or ()]
    return model, content.get("added_tokens")
