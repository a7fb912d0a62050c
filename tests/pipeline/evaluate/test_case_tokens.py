"""Cases become calibration texts: the task's prompt, the reference in the model's form, and the end token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluate.case_tokens import calibration_cases, case_tokens
from pipeline.weights.errors import CheckpointError
from serving.text import Tokenizer
from serving.types import FinishReason
from tasks.task import create_task
from tests.tasks.schema.task_files import write_task
from tests.tiny_tokenizers import byte_level, save

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def model_of(folder: Path) -> Path:
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    return folder


def write(folder: Path, *records: Any) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_schema_case_is_prompt_answer_and_end(tmp_path: Path) -> None:
    model = model_of(write_task(tmp_path / "model", SCHEMA, template="### {text}\n"))
    cases = write(tmp_path, {"input": "ink", "output": {"name": "ink é"}}, {"input": "x", "output": '{"name":"y"}'})
    tokenizer = Tokenizer.from_dir(model)
    (first, start), (second, _) = case_tokens(cases, model, None)
    assert first == [*tokenizer.encode("### ink\n"), *tokenizer.encode('{"name": "ink é"}'), 0]
    assert start == len(tokenizer.encode("### ink\n"))
    assert second[-1] == 0
    assert second == [*tokenizer.encode("### x\n"), *tokenizer.encode('{"name": "y"}'), 0]


def test_the_separators_are_those_of_the_task(tmp_path: Path) -> None:
    model = model_of(write_task(tmp_path, SCHEMA, template="{text}", item_separator=",", key_separator=":"))
    ((tokens, start),) = case_tokens(write(tmp_path, {"input": "a", "output": {"name": "b"}}), model, None)
    assert tokens[start:-1] == Tokenizer.from_dir(model).encode('{"name":"b"}')


@pytest.mark.parametrize("as_text", [True, False])
def test_numbers_keep_their_digits_and_the_grammar_allows_the_answer(tmp_path: Path, as_text: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "string"}}}
    answer = '{"a": [12.50, 1e5, -0.0, 7], "b": "\\u007f"}'
    model = model_of(write_task(tmp_path, schema, template="{text}"))
    cases = tmp_path / "cases.jsonl"
    cases.write_text(f'{{"input": "x", "output": {json.dumps(answer) if as_text else answer}}}\n')
    ((tokens, start),) = case_tokens(cases, model, None)
    assert tokens[start:-1] == Tokenizer.from_dir(model).encode(answer)


def test_a_task_file_elsewhere_is_used(tmp_path: Path) -> None:
    model = model_of(write_task(tmp_path / "model", SCHEMA, template="A {text}"))
    other = write_task(tmp_path / "other", SCHEMA, template="B {text}")
    cases = write(tmp_path, {"input": "a", "output": {"name": "b"}})
    ((own, start),) = case_tokens(cases, model, None)
    ((others, _),) = case_tokens(cases, model, other / "task.json")
    tokenizer = Tokenizer.from_dir(model)
    assert (own[:start], others[:start]) == (tokenizer.encode("A a"), tokenizer.encode("B a"))


@pytest.mark.parametrize("surface", ["json", "python-repr"])
def test_a_honeycomb_case_has_the_prompt_of_predict(surface: str, tmp_path: Path) -> None:
    task = {"task": "honeycomb", "name": "t", "prompt": "columns-first", "surface": surface}
    (tmp_path / "task.json").write_text(json.dumps(task))
    save(byte_level(), model_of(tmp_path))
    query = {"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}
    cases = write(tmp_path, {"nlq": "by name", "cols": ["name", "error"], "query": query})
    tokenizer = Tokenizer.from_dir(tmp_path)
    ((tokens, start),) = case_tokens(cases, tmp_path, None)
    prompt = create_task(tmp_path, tokenizer).prepare({"nlq": "by name", "cols": '["name", "error"]'})
    assert tuple(tokens[:start]) == prompt.token_ids
    reader, text = prompt.reader, tokenizer.decode(tokens[start:-1])
    answer = reader.push(text) + reader.finish(FinishReason.STOP)
    assert json.loads(answer) == query  # the task can read the reference
    assert text.startswith("{" if surface == "json" else '"{')


def test_wrong_cases_are_refused_and_few_are_repeated(tmp_path: Path) -> None:
    model = model_of(write_task(tmp_path, SCHEMA, template="{text}"))
    with pytest.raises(CheckpointError, match=r"cases.jsonl:1"):
        calibration_cases(write(tmp_path, {"question": 1}), model, None, 8192)
    one = write(tmp_path, {"input": "a", "output": {"name": "b"}})
    pieces = calibration_cases(one, model, None, 8192)
    assert 512 <= sum(map(len, pieces)) < 1024 and all(piece == pieces[0] for piece in pieces)
    many = write(tmp_path, *[{"input": "a" * 40, "output": {"name": "b" * 40}}] * 40)
    assert 512 <= sum(map(len, calibration_cases(many, model, None, 1000))) <= 1000
