"""Lines of examples are read one at a time, and those that cannot be used are named with their field."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import duckdb
import pytest

from pipeline.answer_format.errors import ExamplesError
from pipeline.batch.errors import BatchError
from pipeline.train.example_files import ExampleFiles, Part
from pipeline.train.survey import survey
from tasks.json_text import write_answer
from tests.pipeline.train.example_files import write


def lines(path: Path, *texts: str | bytes) -> ExampleFiles:
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in texts))
    return ExampleFiles(path)


def test_outputs_are_objects_texts_or_the_json_text_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    as_text = json.dumps({"input": "c", "output": '{"n": 12.50}'})
    files = lines(
        path, b'\xef\xbb\xbf{"input": "a", "output": {"n": 12.50}}\r', "", as_text, '{"input":"d","output":"x"}'
    )
    first, second, third = files
    assert (first.place, first.input, first.text) == ("some.jsonl:1", "a", None)
    assert write_answer(first.value) == write_answer(second.value) == '{"n": 12.50}'
    assert (second.place, second.output_text) == ("some.jsonl:3", '{"n": 12.50}')
    assert (third.value, third.output_text) == (None, "x")


SYSTEM, USER, ANSWER = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ({"prompt": "u", "completion": "a"}, "u"),
        ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, {"system_prompt": "s", "prompt": "u"}),
        ({"messages": [USER, ANSWER]}, {"prompt": "u"}),
        ({"messages": [SYSTEM, USER, ANSWER]}, {"system_prompt": "s", "prompt": "u"}),
        ({"messages": [USER, ANSWER, USER, ANSWER]}, {"messages": [USER, ANSWER, USER]}),
        ({"instruction": "i", "input": "", "output": "a"}, {"instruction": "i", "input": ""}),
        ({"instruction": "i", "input": None, "output": "a"}, {"instruction": "i", "input": None}),
        ({"instruction": "i", "output": "a"}, {"instruction": "i"}),
    ],
)
def test_lines_of_other_trainers_are_taken(tmp_path: Path, line: dict, given: object) -> None:
    [example] = lines(tmp_path / "some.jsonl", json.dumps(line))
    assert (example.input, example.output_text, example.unused) == (given, "a", ())


def test_tables_are_read_as_lines_are(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('prompt,completion,more\n"a, ""b""\nc","{""n"": 1}",x\n')
    rows = "SELECT [{role: 'user', content: 'u'}, {role: 'assistant', content: 'a'}] AS messages"
    duckdb.sql(rows).write_parquet(str(tmp_path / "test.parquet"))
    first, second = ExampleFiles(tmp_path)
    assert (first.place, first.part, first.input, first.value) == (
        "train.csv, row 1",
        Part.TRAIN,
        'a, "b"\nc',
        {"n": 1},
    )
    assert first.unused == ("more",)
    assert (second.place, second.part) == ("test.parquet, row 1", Part.TEST)
    assert (second.input, second.text) == ({"prompt": "u"}, "a")
    (tmp_path / "train.csv").write_text("input,output\na,b,c\n")
    with pytest.raises(BatchError, match=r"train\.csv:2: 3 fields, and the first line names 2"):
        survey(ExampleFiles(tmp_path))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        (b'{"input": "\xff", "output": "x"}', "not UTF-8 at byte 12"),
        ("[]", "a list, not an object"),
        ('{"input": "a"}', "output is missing; the line has input"),
        ('{"prompt": "a", "output": "b"}', "input is missing; the line has prompt, output"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "messages must end with the assistant's answer"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "messages must end with the assistant's answer"),
        ('{"messages": [{"role": "user", "content": null}, {}]}', "message 1 is not"),
        ('[{"input": "a", "output": "b"}]', "write each of its examples on a line of its own"),
        ('{"input": 5, "output": "b"}', "input is a number"),
        ('{"input": " ", "output": "b"}', "input is blank"),
        ('{"input": {"a": "", "b": null}, "output": "b"}', "input is blank"),
        ('{"input": "a", "output": ""}', "output is blank"),
        ('{"input": "a", "output": [1]}', "output is a list"),
        ('{"input": "a", "output": true}', "output is a boolean"),
        ('{"input": "a", "output": {"n": NaN}}', "NaN is not a JSON number"),
        ('{"input": "a", "output": {"n": 1e999}}', "1e999 is too large"),
        ('{"input": "a", "output": {"n": 1, "n": 2}}', "the key 'n' is there twice"),
        ('{"input": "a\\ud800", "output": "b"}', "input has half a surrogate pair (U+D800)"),
        ('{"input": "a", "output": "{\\"n\\": \\"\\\\udc00\\"}"}', "output has half a surrogate pair (U+DC00)"),
        ('{"input": "a", "output": {"n": ' + "[" * 70 + "]" * 70 + "}}", "nested too deeply"),
        ('{"input": "a", "output": ' + '{"n": ' * 5000 + "1" + "}" * 5000 + "}", "nested too deeply"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_its_field(tmp_path: Path, line: str | bytes, problem: str) -> None:
    files = lines(tmp_path / "some.jsonl", '{"input": "[[[[[" , "output": "b"}', line)
    with pytest.raises(ExamplesError) as caught:
        survey(files)
    assert str(caught.value).splitlines()[1].startswith("some.jsonl:2: ")
    assert problem in str(caught.value)


def test_ten_broken_lines_are_reported_at_once(tmp_path: Path) -> None:
    files = lines(tmp_path / "some.jsonl", *['{"input": "a"}'] * 13)
    with pytest.raises(ExamplesError, match="13 lines cannot be used") as caught:
        survey(files)
    assert len(str(caught.value).splitlines()) == 12
    assert str(caught.value).endswith("and 3 lines more")


def test_many_open_brackets_in_a_text_are_not_nesting(tmp_path: Path) -> None:
    [example] = lines(tmp_path / "some.jsonl", json.dumps({"input": "[" * 500, "output": {"a": "{" * 500}}))
    assert example.value == {"a": "{" * 500}


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    line = json.dumps({"input": "a long input " * 150, "output": {"text": "a long text " * 80}}) + "\n"
    path = tmp_path / "some.jsonl"
    path.write_text(line * 4_000)
    tracemalloc.start()
    try:
        found = survey(ExampleFiles(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.given) == 4_000
    assert peak < path.stat().st_size / 5


def test_a_folder_has_a_file_for_each_part(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match=r"no train\.jsonl"):
        ExampleFiles(tmp_path)
    write(tmp_path / "train.jsonl", {"input": "a", "output": "b"})
    write(tmp_path / "test.jsonl", {"input": "c", "output": "d"})
    files = ExampleFiles(tmp_path)
    assert files.parts == {Part.TRAIN, Part.TEST}
    assert [(example.part, example.input) for example in files] == [(Part.TRAIN, "a"), (Part.TEST, "c")]
    with pytest.raises(ExamplesError, match="does not exist"):
        ExampleFiles(tmp_path / "none.jsonl")
