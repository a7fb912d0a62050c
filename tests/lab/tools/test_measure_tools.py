"""How answers with calls of tools are judged and compared; the public questions themselves are not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.tools.measure import OURS, VLLM, Answers, report
from lab.tools.questions import Question, json_schema
from lab.tools.scoring import Answer, judge

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "copies": {"type": "integer"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "buyer": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
    },
    "required": ["title", "copies"],
}
TOOLS = [
    {"type": "function", "function": {"name": "buy", "parameters": BOOK}},
    {"type": "function", "function": {"name": "sell", "parameters": BOOK}},
]
ACCEPTED: dict[str, list[Any]] = {
    "title": ["Dune", "Dune, part 1"],
    "copies": [2],
    "price": [10.0, ""],
    "tags": [["New", "hard-cover"], ""],
    "buyer": [{"name": ["Ada"], "age": [36, ""]}, ""],
}
MESSAGES = [{"role": "user", "content": "Buy Dune twice."}]
ONE = Question("one", "simple", MESSAGES, TOOLS, [("buy", ACCEPTED)])
TWO = Question("two", "parallel", MESSAGES, TOOLS, [("buy", {"title": ["A"]}), ("buy", {"title": ["B"]})])
NONE = Question("none", "irrelevance", MESSAGES, TOOLS, [])


def calls(*arguments: Any, name: str = "buy") -> Answer:
    return Answer(calls=[(name, one if isinstance(one, str) else json.dumps(one)) for one in arguments])


@pytest.mark.parametrize(
    "arguments",
    [
        {"title": "Dune", "copies": 2},
        {"title": "dune part-1", "copies": 2, "price": 10},
        {"copies": 2, "title": "DUNE", "price": 10.0, "tags": ["new", "hard cover"]},
        {"title": "Dune", "copies": 2, "buyer": {"name": "ada"}},
    ],
)
def test_accepted_arguments_are_right(arguments: dict[str, Any]) -> None:
    assert judge(ONE, calls(arguments)).is_right


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"title": "Dune"}, "arguments"),
        ({"title": "Emma", "copies": 2}, "arguments"),
        ({"title": "Dune", "copies": "2"}, "arguments"),
        ({"title": "Dune", "copies": 2.0}, "arguments"),
        ({"title": "Dune", "copies": 2, "colour": "red"}, "arguments"),
        ({"title": "Dune", "copies": 2, "tags": ["hard-cover", "new"]}, "arguments"),
        ({"title": "Dune", "copies": 2, "buyer": {"age": 36}}, "arguments"),
        ("[1]", "arguments"),
    ],
)
def test_other_arguments_are_wrong(arguments: Any, problem: str) -> None:
    assert judge(ONE, calls(arguments)).problem == problem


def test_the_number_of_calls_and_their_names_count_and_their_order_does_not() -> None:
    right = {"title": "Dune", "copies": 2}
    assert judge(ONE, calls()).problem == "no call"
    assert judge(ONE, calls(right, right)).problem == "too many calls"
    assert judge(ONE, calls(right, name="sell")).problem == "another function"
    assert judge(TWO, calls({"title": "B"}, {"title": "A"})).is_right
    assert judge(TWO, calls({"title": "A"}, {"title": "A"})).problem == "arguments"
    assert judge(TWO, calls({"title": "A"})).problem == "too few calls"
    assert judge(NONE, Answer(content="Which one?")).is_right
    assert judge(NONE, calls(right)).problem == "too many calls"
    assert judge(NONE, Answer(error="busy")).problem == "error"


def test_faults_of_calls_are_counted() -> None:
    assert judge(ONE, calls("{")).unparsable == 1
    assert judge(ONE, Answer(content='So <tool_call>\n{"name": "buy"')).unparsable == 1
    assert judge(ONE, calls({}, name="lend")).unknown_names == 1
    assert judge(ONE, calls({"title": 1, "copies": 2})).misfits == 1


def test_types_of_python_become_those_of_json() -> None:
    written = {
        "type": "dict",
        "properties": {
            "type": {"type": "any"},
            "at": {"type": "tuple", "items": {"type": "float"}},
            "more": {"type": "dict", "properties": {"deep": {"type": "dict"}}, "additionalProperties": {"type": "any"}},
        },
    }
    assert json_schema(written) == {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "at": {"type": "array", "items": {"type": "number"}},
            "more": {
                "type": "object",
                "properties": {"deep": {"type": "object"}},
                "additionalProperties": {"type": "string"},
            },
        },
    }


def test_a_report_compares_by_category_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    questions, path = [ONE, TWO, NONE], tmp_path / "answers.jsonl"
    kept = Answers(path)
    kept.add(OURS, ONE, calls({"title": "Dune", "copies": 2}))
    kept.add(OURS, NONE, Answer())
    kept = Answers(path)
    assert kept.missing(OURS, questions) == [TWO]
    kept.add(OURS, TWO, calls({"title": "A"}, {"title": "B"}))
    ours = kept.of(OURS, questions)
    found = report(questions, {OURS: ours, VLLM: [Answer(content="<tool_call>"), ours[1], ours[2]]})
    assert found["categories"]["simple"]["ours_minus_vllm"] == {"difference": 1.0, "low": 1.0, "high": 1.0}
    assert found["all"]["ours"]["value"] == 1.0
    assert found["all"]["vllm"]["value"] == pytest.approx(2 / 3)
    assert found["right_of_one_only"] == {OURS: ["one"], VLLM: []}
    assert found["servers"][VLLM]["unparsable calls"] == 1
    assert found["servers"][VLLM]["problems"] == {"no call": 1}
