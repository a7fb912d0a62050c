"""Both forms of test files are read, and unusable lines are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.errors import CaseFileError
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.evaluation.queries import QueryEvaluation, written_answers

QUERY = {"breakdowns": ["name"], "calculations": [{"op": "COUNT"}], "time_range": 7200}


read_cases = QueryEvaluation("json").read_cases


def write(tmp_path: Path, *records: object) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in records) + "\n", encoding="utf-8")
    return path


def test_simple_form_with_queries_and_columns_as_text_or_json(tmp_path: Path) -> None:
    plain = {"nlq": "by name", "cols": ["name", "b"], "query": QUERY, "category": "top"}
    text = {"nlq": "by name", "cols": "['name', 'b']", "query": json.dumps(QUERY)}
    (first, second), refused = read_cases(write(tmp_path, plain, text))
    assert refused == []
    assert (first.line, first.category, second.line, second.category) == (1, "top", 2, None)
    assert first.inputs == second.inputs == {"nlq": "by name", "cols": '["name", "b"]'}
    # references are canonical, so that they can be compared
    assert canonical_json(first.reference) == '{"breakdowns": ["name"], "calculations": [{"op": "COUNT"}]}'
    assert first.reference == second.reference


def test_the_form_that_corrections_have(tmp_path: Path) -> None:
    plain = {"nlq": "by name", "cols": ["name", "b"], "query": QUERY}
    corrected = {"input": {"nlq": "by name", "cols": "['name', 'b']"}, "output": json.dumps(QUERY)}
    path = write(tmp_path, plain, corrected)
    (first, second), refused = read_cases(path)
    assert refused == [] and first.inputs == second.inputs and first.reference == second.reference
    assert [inputs for inputs, _ in written_answers(path)] == [first.inputs, first.inputs]


def test_chat_form_with_quotes_in_the_question_and_a_python_answer(tmp_path: Path) -> None:
    human = 'Do it.\n\nNLQ: "slow "GET" calls"\n\nColumns: [\'name\', "it\'s"]'
    answer = "\"{'breakdowns': ['name'], 'calculations': [{'op': 'COUNT'}]}\""
    turns = [("system", "You are …"), ("human", human), ("gpt", answer)]
    record = {"conversations": [{"from": who, "value": value} for who, value in turns]}
    (case,), _ = read_cases(write(tmp_path, record))
    assert case.inputs["nlq"] == 'slow "GET" calls'
    assert json.loads(case.inputs["cols"]) == ["name", "it's"]
    assert case.reference.breakdowns == ("name",)


def test_an_invalid_reference_is_left_out_and_named(tmp_path: Path) -> None:
    good = {"nlq": "a", "cols": ["name"], "query": QUERY}
    invented = good | {"query": {"breakdowns": ["nam"]}}
    cases, refused = read_cases(write(tmp_path, invented, good))
    assert [c.line for c in cases] == [2]
    assert len(refused) == 1
    assert "data.jsonl:1" in refused[0]
    assert "'nam'" in refused[0]


def test_limit_counts_usable_cases(tmp_path: Path) -> None:
    good = {"nlq": "a", "cols": ["name"], "query": QUERY}
    cases, _ = read_cases(write(tmp_path, good | {"query": {"limit": 0}}, good, good, good), limit=2)
    assert [c.line for c in cases] == [2, 3]


@pytest.mark.parametrize("text", ["[1]", '{"nlq": "a"}', "not json", '{"conversations": []}', ""])
def test_other_files_are_refused_with_the_line_and_the_expected_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(CaseFileError, match=r"data\.jsonl"):
        read_cases(path)


def test_the_error_of_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError, match="make_data"):
        read_cases(tmp_path / "none.jsonl")
