"""The tasks of adapters that were trained for another prompt than the base's: a folder that adapters.yaml names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, WeightsError
from serving.text import Tokenizer
from serving.text.template_files import read_templates
from serving.weights.adapter_files import CONFIG, TENSORS, files_that_count
from tasks.errors import TaskError
from tasks.task import Task, create_task, task_name

_TEMPLATES = ("chat_template.jinja", "additional_chat_templates")


def adapter_tasks(
    entries: Mapping[str, AdapterEntry],
    base: Path,
    tokenizer: Tokenizer,
    own_tokenizers: Mapping[str, Tokenizer] = MappingProxyType({}),
) -> dict[str, Task]:
    """The tasks of those entries that name one, by adapter; `own_tokenizers` are those of `adapter_tokenizers`.

    What a task's folder lacks (options, template, special tokens) is taken from the folder of the base.

    Raises:
        AdapterError: a task cannot be used, or has other inputs than the base's.
    """
    return {
        name: _task(entry, entry.task, base, own_tokenizers.get(name, tokenizer))
        for name, entry in entries.items()
        if entry.task
    }


def _task(entry: AdapterEntry, own: Path, base: Path, tokenizer: Tokenizer) -> Task:
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _overlay(folder, own, base)
            if (kind := task_name(folder)) != task_name(base):
                raise AdapterError(f"it is of the task {kind}, and the base's inputs are those of {task_name(base)}")
            return create_task(folder, tokenizer)
    except (AdapterError, TaskError, WeightsError, OSError) as error:
        raise AdapterError(f"adapter {entry.name!r}: task: {own} cannot be used: {error}") from error


def _overlay(folder: Path, own: Path, base: Path) -> None:
    """Link what a task reads: all of `own`, and what is only in `base`."""
    files = {path.name: path for path in own.iterdir() if path.name not in (CONFIG, TENSORS)}
    names = [path.name for path in base.iterdir()]
    wanted = {*files_that_count(names), *_TEMPLATES} & set(names)
    if read_templates(own):
        wanted -= set(_TEMPLATES)  # a template in tokenizer_config.json would come second to these
    for name in wanted - files.keys():
        files[name] = base / name
    for name, path in files.items():
        (folder / name).symlink_to(path.resolve())
