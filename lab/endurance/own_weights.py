"""Folders of weights for one run, with a lock of their own, and packages of the small model as a chat."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

from pipeline.package.signature import write_schema
from pipeline.paths import ROOT
from serving.weights import LockedSource, LockedWeights, WeightsLock, lock_files, set_digest

_TASKS: Final = ROOT / "tasks"
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
# ChatML, the form of the small model's base.
_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def lock_text(weights: Path) -> str:
    """The text of weights.lock for the files that are in a folder now."""
    files = lock_files(weights)
    entry = LockedWeights(
        name=weights.name,
        target=f"/src/weights/{weights.name}",
        sources=(LockedSource(uri=f"file://{weights}", fingerprint=set_digest(files)),),
        imported_at="2026-01-01T00:00:00Z",
        set_digest=set_digest(files),
        size=sum(file.size for file in files),
        files=files,
    )
    return WeightsLock(version=1, envelope_format="", weights=(entry,)).text()


def copied_weights(source: Path, folder: Path) -> dict[str, str]:
    """A copy of weights, which a row may damage, and its lock; the settings for them."""
    copy = folder / source.name
    shutil.copytree(source, copy)
    lock = folder / "weights.lock"
    lock.write_text(lock_text(copy), "utf-8")
    return settings(copy, lock)


def linked_weights(source: Path, folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The same weights under another task, without copying them; the settings for them.

    Args:
        source: the weights.
        folder: the place for the hard links and the lock; made if need be. On another file system the files are copied.
        files: texts of files that are added or replaced.
    """
    other = folder / source.name
    other.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in files:
            try:
                os.link(path, other / path.name)
            except OSError:
                shutil.copy(path, other / path.name)
    for name, text in files.items():
        (other / name).write_text(text, "utf-8")
    lock = folder / "weights.lock"
    lock.write_text(lock_text(other), "utf-8")
    return settings(other, lock)


def settings(weights: Path, lock: Path) -> dict[str, str]:
    """Environment variables of a server with these weights."""
    return {"WEIGHTS_DIR": str(weights), "WEIGHTS_LOCK": str(lock)}


def chat_files() -> dict[str, str]:
    """Texts of the files that make the small model's weights those of a chat."""
    task = {"task": "chat", "name": "chat", "defaults": {"temperature": 0.0, "max_tokens": 64}}
    return {"task.json": json.dumps(task), "chat_template.jinja": _TEMPLATE}


def write_package(folder: Path, task: str) -> Path:
    """A folder in which Cog finds predict.py of a task (chat, schema) and its schema; returns it."""
    (folder / ".cog").mkdir(parents=True)
    shutil.copy(_TASKS / task / "predict.py", folder / "predict.py")
    shutil.copy(ROOT / _SCHEMA, folder / _SCHEMA)
    write_schema(folder)
    return folder
