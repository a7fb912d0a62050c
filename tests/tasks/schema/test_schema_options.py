"""task.json of a schema model: valid options, and the errors of invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import InputError, TaskFileError
from tasks.schema.options import SchemaOptions
from tasks.task import create_task
from tests.tasks.schema.task_files import load_task, write_task
from tests.tiny_tokenizers import byte_level

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}


def test_the_example_of_the_errors_works(tmp_path: Path) -> None:
    write_task(tmp_path, OBJECT)
    (tmp_path / "task.json").write_text(SchemaOptions.example())
    prompt = create_task(tmp_path, byte_level()).prepare({"text": "5 EUR"})
    assert byte_level().decode(prompt.token_ids) == "### Email:\n5 EUR\n\n### Invoice:\n"


def test_the_schema_may_be_a_file_beside_the_options(tmp_path: Path) -> None:
    write_task(tmp_path, None, schema_file="invoice.json")
    (tmp_path / "invoice.json").write_text(json.dumps(OBJECT))
    constraint = create_task(tmp_path, byte_level()).prepare({"text": "x"}).constraint
    assert constraint == load_task(tmp_path / "inline", OBJECT).constraint


def test_an_input_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    options = {"inputs": ["told", "text"], "template": "### Told:\n{told}\n\n{text}:", "defaults": {"told": "Copy."}}
    task = load_task(tmp_path, OBJECT, **options)
    for inputs, told in [({}, "Copy."), ({"told": " \n"}, "Copy."), ({"told": "Count."}, "Count.")]:
        prompt = task.prepare({"text": "x"} | inputs)
        assert byte_level().decode(prompt.token_ids) == f"### Told:\n{told}\n\nx:"
    with pytest.raises(InputError, match="text: is blank"):
        task.prepare({"text": " "})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"schema": None}, "give either schema, or schema_file"),
        ({"schema_file": "a.json"}, "give either schema, or schema_file"),
        ({"schema": None, "schema_file": "../a.json"}, "schema_file '../a.json' is not a file in"),
        ({"schema": None, "schema_file": "a.json"}, "schema_file 'a.json' is not a file in"),
        ({"schema": None, "schema_file": "broken.json"}, "broken.json is not JSON"),
        ({"template": None}, "the checkpoint has no chat template; give template"),
        ({"chat": {}}, "give either template, or chat"),
        ({"template": None, "chat": {}}, "the checkpoint has no chat template"),
        ({"template": None, "chat": {"user": "no place"}}, "the template has no {text}"),
        ({"template": None, "chat": {"sistem": "x"}}, "chat.sistem: Extra inputs are not permitted"),
        ({"template": "no place"}, "the template has no {text}"),
        ({"inputs": []}, "inputs: "),
        ({"inputs": ["seed"]}, "'seed' cannot name an input"),
        ({"inputs": ["a b"]}, "'a b' cannot name an input"),
        ({"inputs": ["text", "text"]}, "a name occurs twice"),
        ({"defaults": {"txt": "a"}}, "defaults: there is no input txt; inputs has text"),
        ({"defaults": {"text": "a"}}, "give none to one of the inputs"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": "many"}, "max_tokens: "),
        ({"schema": {}}, "allows any value"),
        ({"schema": True}, "allows any value"),
        ({"schema": {"title": "Anything"}}, "allows any value"),
        ({"schema": 7}, "7 is not a schema"),
        (
            {"schema": {"type": "object", "properties": {"a": {"not": {"pattern": "(?<=a)b"}}}}},
            "at #/properties/a/not/pattern: ",
        ),
        ({"schema": {"$ref": "#/$defs/A", "$defs": {"A": {"pattern": r"(a)\1"}}}}, "at #/$defs/A/pattern: "),
        ({"schema": {"items": {"$ref": "#/nowhere"}}}, "at #/items"),
        ({"item_separator": "("}, "item_separator: Value error, '(' is not a regular expression"),
        ({"key_separator": ","}, "key_separator: Value error, ',' also matches what is not ':'"),
    ],
)
def test_the_error_of_an_invalid_file_explains_it(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(TaskFileError) as caught:
        load_task(tmp_path, options.pop("schema", OBJECT), **options)
    assert problem in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("levels", "problem"), [(900, "nested too deeply"), (50_000, "nested too deeply")])
def test_a_schema_that_is_nested_too_deeply_is_an_error(tmp_path: Path, levels: int, problem: str) -> None:
    write_task(tmp_path, None, schema_file="deep.json")
    (tmp_path / "deep.json").write_text('{"items":' * levels + "{}" + "}" * levels)
    with pytest.raises(TaskFileError, match=problem):
        create_task(tmp_path, byte_level())


def test_several_inputs(tmp_path: Path) -> None:
    task = load_task(tmp_path, OBJECT, inputs=["subject", "body"], template="Subject: {subject}\n\n{body}\n\nJSON:")
    prompt = task.prepare({"subject": " Bill ", "body": "Hi\r\nthere\n"})
    assert byte_level().decode(prompt.token_ids) == "Subject: Bill\n\nHi\nthere\n\nJSON:"
    assert byte_level().decode(task.prepare({"body": "x"}).token_ids) == "Subject: \n\nx\n\nJSON:"
    assert task.long_inputs == "subject and body"


def test_sampling_is_greedy_by_default(tmp_path: Path) -> None:
    task = load_task(tmp_path, OBJECT, max_tokens=77)
    plain = task.prepare({"text": "x", "temperature": None, "seed": None, "max_tokens": None}).sampling
    assert (plain.max_tokens, plain.temperature, plain.seed) == (77, 0.0, None)
    given = task.prepare({"text": "x", "temperature": 0.5, "seed": 0, "max_tokens": 9.0}).sampling
    assert (given.max_tokens, given.temperature, given.seed) == (9, 0.5, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "text: is blank; give 1 to 100 characters"),
        (" \n\t", "text: is blank"),
        ("x" * 101, "text: 101 characters, the limit is 100; give a shorter text"),
        ("ab\ud800", "text: half a surrogate pair (U+D800) at character 3"),
    ],
)
def test_a_wrong_input_is_refused_by_name(tmp_path: Path, text: str, problem: str) -> None:
    task = load_task(tmp_path, OBJECT, max_input_characters=100)
    with pytest.raises(InputError) as caught:
        task.prepare({"text": text})
    assert problem in str(caught.value)
