"""Refuse an adapter that was trained with another prompt or vocabulary than the base's.

Answers would be wrong, and nobody would see why. Files that say the same as the base's are accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from serving.errors import WeightsError
from serving.text.template_files import read_templates
from serving.text.tokenizer import read_json

_TOKENIZER: Final = "tokenizer.json"
_TASK: Final = "task.json"
_REMEDY: Final = "merge it and serve the result by itself (scripts/merge_lora), or remove the file if it has no effect"


def check_companions(folder: Path, base: Path) -> None:
    """Compare an adapter's chat template, vocabulary and task file, where it has them, with the base's.

    Raises:
        WeightsError: they differ.
    """
    templates = read_templates(folder)
    if templates and templates != read_templates(base):
        raise WeightsError(f"{folder} has a chat template, which differs from the base's; {_REMEDY}")
    for name, read in ((_TOKENIZER, _vocabulary), (_TASK, read_json)):
        if (folder / name).is_file() and read(folder / name) != read(base / name):
            raise WeightsError(f"{folder} has its own {name}, which differs from the base's; {_REMEDY}")


def _vocabulary(path: Path) -> tuple[Any, Any]:
    """What makes token ids; padding and truncation do not."""
    content = read_json(path)
    return content.get("model"), content.get("added_tokens")
