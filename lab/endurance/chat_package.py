"""Packages of the small model as a chat, whose callers send schemas and messages, and of its base with adapters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from pipeline.package.signature import write_schema
from pipeline.paths import ROOT

_TASKS: Final = ROOT / "tasks"
_SCHEMA: Final = Path(".cog") / "openapi_schema.json"
# ChatML, the form of the small model's base.
_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


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
