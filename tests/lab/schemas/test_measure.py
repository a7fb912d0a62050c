"""What is measured of schemas, and that no invalid instance of real ones is let through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.schemas.again import RandomAnswers
from lab.schemas.measure import TASKS, Measurement, in_order, keyword
from pipeline.paths import ROOT
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS

SAMPLE = ROOT.parent / "shared" / "data" / "schemas" / "sample.jsonl"  # not of this repository
EVERY = 12  # line of it

PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
LINES: list[dict[str, Any]] = [
    {
        "id": "person",
        "schema": PERSON | {"required": ["name"], "not": {"required": ["age"], "properties": {"name": {"const": "x"}}}},
        "tests": [
            {"data": {"name": "Ada", "age": 36}, "valid": True},
            {"data": {"age": 36, "name": "Ada"}, "valid": True},
            {"data": {"name": "Ada", "town": "London"}, "valid": True},
            {"data": {"name": "x", "age": 1}, "valid": False},
            {"data": {"name": "Ada", "age": "36"}, "valid": False},
        ],
    },
    {"id": "back", "schema": {"type": "object", "properties": {"a": {"pattern": r"(a)\1"}}}, "tests": []},
]


@pytest.fixture(scope="module")
def measurement() -> Measurement:
    return Measurement(WEIGHTS)


@pytest.mark.weights
@NEEDS_WEIGHTS
@pytest.mark.parametrize("task", TASKS)
def test_each_instance_is_counted_once(measurement: Measurement, task: str) -> None:
    found = measurement.run(LINES, task).report()
    assert (found["schemas"], found["accepted"], found["checked besides the grammar"]) == (2, 1, 1)
    assert found["refusals"] == {"pattern: … is no regular expression that can be checked in linear time; look-ar": 1}
    assert (found["let through"], found["refused for the order of keys"]) == (1, 1)
    assert (found["refused as the narrowed schema does"], found["refused, valid"]) == (1, 0)
    assert (found["invalid instances"], found["invalid accepted"]) == (2, 0)


@pytest.mark.weights
@NEEDS_WEIGHTS
@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of real schemas is not beside the repository")
@pytest.mark.parametrize("task", TASKS)
def test_real_schemas_are_accepted_and_no_invalid_instance(measurement: Measurement, task: str) -> None:
    lines = [json.loads(line) for line in SAMPLE.read_text("utf-8").splitlines()[::EVERY]]
    found = measurement.run(lines, task)
    assert found.invalid_accepted == {}
    assert found.valid_refused == {}
    assert found.accepted >= 0.95 * found.schemas


def test_keys_get_the_order_of_the_schema() -> None:
    value = {"age": 1, "other": {"age": 2, "name": "b"}, "name": "a"}
    assert list(in_order(PERSON, value)) == ["name", "age", "other"]
    assert list(in_order(PERSON, value)["other"]) == ["name", "age"]


def test_a_refusal_is_named_by_its_keyword() -> None:
    message = "the JSON schema does not compile at #/properties/a/format: Unknown format: 'x'"
    assert keyword(message) == "format: Unknown format: …"


@pytest.mark.weights
@NEEDS_WEIGHTS
def test_answers_of_random_tokens_are_counted_by_their_ends() -> None:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    unique = {"type": "array", "items": digit, "minItems": 5, "maxItems": 5, "uniqueItems": True}
    none = unique | {"items": digit | {"maximum": 0}}
    found = RandomAnswers(WEIGHTS, 40).report([unique, none, PERSON], 3)
    assert (found["answers"], found["valid"], found["a keyword could not be met"]) == (6, 3, 3)
    assert sum(found["chosen again"].values()) == 6
