"""Refuse an adapter that was trained with another prompt or vocabulary than the base's.

Answers would be wrong, and nobody would see why. Files that say the same as the base's are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from serving.adapters.adapter_tokenizers import TOKENIZER, vocabulary
from serving.errors import WeightsError
from serving.text.template_files import read_templates
from serving.text.tokenizer import read_json

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

    Args:
        folder: of the adapter.
        task: folder of the task file, the chat template and the tokenizer that make its prompts.
        base: folder of the base, for what `task` lacks.

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
