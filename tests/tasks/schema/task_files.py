"""A folder with a tokenizer and a task.json, as a checkpoint has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.schema.task import SchemaTask, create
from tests.tiny_tokenizers import byte_level, save

TEMPLATE = "### Text:\n{text}\n\n### JSON:\n"


def write_task(folder: Path, schema: Any, **options: Any) -> Path:
    """The folder, with what a package's setup reads."""
    folder.mkdir(parents=True, exist_ok=True)
    save(byte_level(), folder)
    content = {"task": "schema", "name": "test", "schema": schema, "template": TEMPLATE, **options}
    given = {key: value for key, value in content.items() if value is not None}
    (folder / "task.json").write_text(json.dumps(given), encoding="utf-8")
    return folder


def load_task(folder: Path, schema: Any, **options: Any) -> SchemaTask:
    """The task of such a folder."""
    return create(write_task(folder, schema, **options), byte_level())
