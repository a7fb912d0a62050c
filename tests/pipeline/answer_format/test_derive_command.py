"""scripts/derive_format on a checkpoint's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.answer_format.command import app
from tests.tasks.schema.task_files import write_task

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
}


def run(folder: Path, *answers: str, arguments: tuple[str, ...] = ()) -> tuple[int, str, str]:
    examples = folder / "examples.jsonl"
    examples.write_text("\n".join(answers))
    result = CliRunner().invoke(app, [str(folder), str(examples), *arguments])
    return result.exit_code, result.stdout, result.stderr


def task_file(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "task.json").read_text())


def test_it_prints_the_task_file_without_changing_it(tmp_path: Path) -> None:
    before = task_file(write_task(tmp_path, SCHEMA))
    code, output, _ = run(tmp_path, '{"b":[1,2],"a":1}')
    assert code == 0
    printed = json.loads(output)
    assert list(printed["schema"]["properties"]) == ["b", "a"]
    assert (printed["item_separator"], printed["key_separator"]) == (",", ":")
    assert printed["template"] == before["template"]
    assert task_file(tmp_path) == before


def test_it_writes_the_task_file(tmp_path: Path) -> None:
    write_task(tmp_path, SCHEMA)
    code, output, messages = run(tmp_path, '{"b": [1, 2], "a": 1}', arguments=("--write",))
    assert (code, output) == (0, "")
    assert "task.json" in messages
    assert list(task_file(tmp_path)["schema"]["properties"]) == ["b", "a"]
    assert task_file(tmp_path)["item_separator"] == ", "


def test_it_writes_the_schema_file(tmp_path: Path) -> None:
    write_task(tmp_path, None, schema_file="s.json")
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    assert run(tmp_path, '{"b": [1, 2], "a": 1}', arguments=("--write",))[0] == 0
    assert list(json.loads((tmp_path / "s.json").read_text())["properties"]) == ["b", "a"]
    assert task_file(tmp_path).keys() >= {"schema_file", "item_separator"}
    assert "schema" not in task_file(tmp_path)


def test_examples_outside_the_schema_are_an_error(tmp_path: Path) -> None:
    write_task(tmp_path, SCHEMA)
    code, output, messages = run(tmp_path, '{"a": 1}', '{"a": "x"}')
    assert code == 2
    assert json.loads(output)
    assert "examples.jsonl:2" in messages and "1 examples are answers" in messages


@pytest.mark.parametrize(("answer", "problem"), [('{\n"a": 1}', "not JSON"), ("", "is empty")])
def test_mistakes_are_reported(tmp_path: Path, answer: str, problem: str) -> None:
    write_task(tmp_path, SCHEMA)
    code, _, messages = run(tmp_path, answer)
    assert code == 1
    assert problem in messages and "Traceback" not in messages
