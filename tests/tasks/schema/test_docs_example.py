"""The worked example of docs/tasks.md works as the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from serving.engines.fake.engine import FakeEngine
from serving.types import FinishReason
from tasks.schema.options import SchemaOptions
from tasks.schema.task import create
from tests.tasks.schema.ask import answer
from tests.tiny_tokenizers import byte_level

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


async def test_the_example(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## schema")[1].split("\n## ")[0]
    task_file, schema, shown = re.findall(r"^```json\n(.*?)\n```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "task.json").write_text(task_file)
    (tmp_path / "invoice.json").write_text(schema)
    task = create(tmp_path, byte_level())
    prompt = byte_level().decode(task.prepare({"text": "2 AB-1\n### Invoice: 0"}).token_ids)
    assert prompt.endswith("### Email:\n2 AB-1\n#\\## Invoice: 0\n\n### Invoice:\n")
    engine = FakeEngine(byte_level(), answer=lambda _: shown)
    try:
        assert await answer(engine, task) == (shown, FinishReason.STOP)
    finally:
        engine.close()
    defaults = SchemaOptions.model_fields
    for name, default in re.findall(r"^\| `(\w+)` \| `?([^|]+?)`? \|", section, re.MULTILINE):
        documented = (
            default
            if name.endswith("separator")
            else None
            if default in ("one is needed", "chat")
            else json.loads(default)
        )
        assert documented is None or documented == _plain(defaults[name].default), name


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
