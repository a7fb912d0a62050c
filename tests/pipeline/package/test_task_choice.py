"""The task.json and predict.py that the options of scripts/new_package give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.package.errors import PackageError
from pipeline.package.new_package import predict_source
from pipeline.package.signature import read_inputs
from pipeline.package.task_choice import TaskChoice, task_content
from tasks.chat.options import Defaults

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
SCHEMA_TASK = {"task": "schema", "name": "theirs", "schema": SCHEMA, "template": "{text}\n"}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    return write(tmp_path / "schema.json", SCHEMA)


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def chosen(folder: Path, **options: Any) -> dict[str, Any]:
    return task_content(folder, "mine", TaskChoice(**options))


def test_a_schema_task_uses_the_chat_template_unless_a_prompt_is_given(tmp_path: Path, schema: Path) -> None:
    content = chosen(tmp_path, task="schema", schema=schema)
    assert content == {"task": "schema", "name": "mine", "schema": SCHEMA, "chat": {}}
    content = chosen(tmp_path, task="schema", schema=schema, system="Extract.")
    assert content["chat"] == {"system": "Extract."}
    template = write(tmp_path / "prompt.txt", "### Text:\n{text}\n### JSON:\n")
    content = chosen(tmp_path, task="schema", schema=schema, template=template)
    assert content == {"task": "schema", "name": "mine", "schema": SCHEMA, "template": "### Text:\n{text}\n### JSON:\n"}


def test_examples_give_separators_and_order(tmp_path: Path, schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = ['{"a":1,"b":"x"}', '{"a":2,"b":"y"}']
    examples = write(
        tmp_path / "answers.jsonl", "".join(json.dumps({"input": "t", "output": a}) + "\n" for a in answers)
    )
    content = chosen(tmp_path, task="schema", schema=schema, examples=examples)
    assert list(content["schema"]["properties"]) == ["a", "b"]
    assert (content["item_separator"], content["key_separator"]) == (",", ":")
    wrong = write(tmp_path / "wrong.jsonl", json.dumps({"input": "t", "output": '{"a": "one"}'}))
    chosen(tmp_path, task="schema", schema=schema, examples=wrong)
    assert "1 examples are answers that the constraint does not allow" in capsys.readouterr().err


def test_a_chat_task_has_the_checkpoint_s_sampling_defaults(tmp_path: Path) -> None:
    content = chosen(tmp_path, task="chat", system="Be brief.")
    assert (content["task"], content["name"]) == ("chat", "mine")
    assert content["defaults"] | {"system_prompt": None} == {
        name: value for name, value in Defaults().model_dump().items() if value not in ((), {})
    }
    assert content["defaults"]["system_prompt"] == "Be brief."
    write(tmp_path / "generation_config.json", {"do_sample": True, "temperature": 0.7, "top_k": 20})
    defaults = chosen(tmp_path, task="chat")["defaults"]
    assert (defaults["temperature"], defaults["top_k"], defaults["top_p"]) == (0.7, 20, Defaults().top_p)
    file = write(tmp_path / "mine.json", {"task": "chat", "name": "x", "defaults": {"top_k": 5}})
    defaults = chosen(tmp_path, task_file=file)["defaults"]
    assert (defaults["temperature"], defaults["top_k"]) == (0.7, 5)
    write(tmp_path / "generation_config.json", {"do_sample": False, "temperature": 0.7})
    assert chosen(tmp_path, task="chat")["defaults"]["temperature"] == Defaults().temperature


def test_options_override_the_checkpoint_s_task_file(tmp_path: Path) -> None:
    write(tmp_path / "task.json", {**SCHEMA_TASK, "inputs": ["text"]})
    assert chosen(tmp_path) == {**SCHEMA_TASK, "name": "mine", "inputs": ["text"]}
    content = chosen(tmp_path, task="schema", system="Extract.")
    assert "template" not in content
    assert content["chat"] == {"system": "Extract."}
    assert "template" not in chosen(tmp_path, task="chat")


def test_a_schema_file_is_copied(tmp_path: Path, schema: Path) -> None:
    own = {"task": "schema", "name": "theirs", "schema_file": schema.name, "template": "{text}\n"}
    write(tmp_path / "task.json", own)
    assert chosen(tmp_path) == {**SCHEMA_TASK, "name": "mine"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no task was chosen"),
        ({"task": "schema"}, "needs a JSON Schema"),
        ({"task": "chat", "schema": "schema.json"}, "--schema is for the task schema, and this is chat"),
        ({"task": "honeycomb", "system": "x"}, "--system is for the task schema and chat, and this is honeycomb"),
        ({"task": "schema", "schema": "schema.json", "template": "p", "system": "x"}, "give one of them"),
        ({"task": "schema", "schema": "broken.json"}, "broken.json is not JSON"),
        ({"task_file": "list.json"}, "list.json holds a list, not an object"),
        ({"task": "schema", "schema": "schema.json", "examples": "broken.json"}, "broken.json:1: not JSON"),
        ({"task": "schema", "schema": "missing.json"}, "missing.json cannot be read as text"),
    ],
)
def test_conflicting_options_are_reported(tmp_path: Path, schema: Path, options: dict, message: str) -> None:
    write(tmp_path / "broken.json", "{")
    write(tmp_path / "list.json", [])
    files = {"schema", "template", "examples", "task_file"}
    given = {name: tmp_path / value if name in files else value for name, value in options.items()}
    with pytest.raises(PackageError) as error:
        chosen(tmp_path, **given)
    assert message in str(error.value)


def test_a_checkpoint_of_another_task_is_named_where_the_schema_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "task.json", {"task": "honeycomb", "name": "theirs"})
    with pytest.raises(PackageError) as error:
        chosen(tmp_path, task="schema")
    assert "give --schema" in str(error.value)
    assert f"{tmp_path} has a model for the task honeycomb; scripts/new_package --weights takes" in str(error.value)


def test_each_text_of_a_schema_task_is_an_input(tmp_path: Path) -> None:
    source = predict_source({"task": "schema", "inputs": ["question", "table_rows"]})
    inputs = read_inputs(source, "Predictor")
    assert list(inputs["properties"]) == ["question", "table_rows", "max_tokens", "temperature", "seed", "adapter"]
    assert inputs["required"] == ["question", "table_rows"]
    assert "question=question,\n            table_rows=table_rows,\n            max_tokens" in source
    assert "text" not in inputs["properties"]
    source = predict_source({"task": "schema", "inputs": ["told", "text"], "defaults": {"told": 'Be "brief".\nVery.'}})
    inputs = read_inputs(source, "Predictor")
    assert inputs["required"] == ["text"]
    assert inputs["properties"]["told"]["description"] == "By default the text that task.json has."


def test_the_description_of_max_tokens_names_the_default_of_the_task_file():
    chat = {"task": "chat", "defaults": {"max_tokens": 1200}}
    for task_file, default in (
        ({"task": "chat"}, "512"),
        (chat, "1,200"),
        ({"task": "schema", "max_tokens": 99}, "99"),
    ):
        assert f"Maximum tokens of the answer, by default {default}" in predict_source(task_file)
