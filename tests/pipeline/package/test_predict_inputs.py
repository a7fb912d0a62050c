"""Inputs of scripts/predict are checked against the same schema, with the same messages, as in Cog's server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

from pipeline.package.command_inputs import BadInputError, describe_inputs, read_inputs  # noqa: E402
from pipeline.package.signature import write_inputs  # noqa: E402

SCHEMA = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))


def test_values_are_converted_by_type_and_defaults_added():
    assert read_inputs(["nlq=a=b", "cols=['x']"], SCHEMA) == {
        "nlq": "a=b",
        "cols": "['x']",
        "max_tokens": 512,
        "adapter": None,
    }


def test_a_value_can_be_read_from_a_file(tmp_path):
    (tmp_path / "columns.txt").write_text("['é']", encoding="utf-8")
    assert read_inputs(["nlq=a", f"cols=@{tmp_path}/columns.txt"], SCHEMA)["cols"] == "['é']"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["nlq"], "'nlq' has no '='"),
        (["nlq=a"], "cols is missing; add -i cols=…"),
        (
            ["nlq=a", "cols=a", "col=b"],
            "col: no such input; there are nlq, cols, max_tokens, adapter; did you mean cols?",
        ),
        (["nlq=a", "nlq=b"], "nlq: given twice"),
        (["nlq=a", "cols=a", "max_tokens=0"], "max_tokens: 0 is less than the minimum of 1"),
        (["nlq=a", "cols=a", "max_tokens=2501"], "max_tokens: 2501 is greater than the maximum of 2500"),
        (["nlq=a", "cols=a", "max_tokens=1e3"], 'max_tokens: "1e3" is not of type "integer"'),
        (["nlq=a", "cols=a", "max_tokens="], 'max_tokens: "" is not of type "integer"'),
        (["nlq=a", "cols=@/no/such/file"], "cols: cannot read /no/such/file: No such file or directory"),
    ],
)
def test_inputs_that_the_server_would_refuse_are_refused_by_name(pairs, message):
    with pytest.raises(BadInputError) as error:
        read_inputs(pairs, SCHEMA)
    assert message in str(error.value)


TYPES = """
class Predictor:
    async def predict(
        self,
        messages: Annotated[list[dict], Opaque] = Input(default=[], description="A conversation."),
        stop: str | list[str] = Input(default=[]),
        names: list[str] = Input(default=[]),
        schema: dict | None = Input(default=None),
        stream: bool = Input(default=True),
        kind: str = Input(default="a", choices=["a", "b"]),
        top_p: float = Input(default=0.9, ge=0, le=1),
        word: str = Input(default="abc", min_length=2, max_length=4),
    ) -> str: ...
"""


@pytest.fixture(scope="module")
def types() -> dict:
    document = json.loads(json.dumps(SCHEMA))
    write_inputs(document, TYPES, "Predictor")
    return document


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ('messages=[{"role": "user", "content": "hi"}]', [{"role": "user", "content": "hi"}]),
        ("stop=END", "END"),
        ('stop=["a", "b"]', ["a", "b"]),
        ("stop=[1]", "[1]"),
        ('names=["a,b"]', ["a,b"]),
        ('schema={"type": "object"}', {"type": "object"}),
        ("stream=false", False),
        ("kind=b", "b"),
        ("top_p=1", 1),
        ('word="a"', '"a"'),
    ],
)
def test_values_of_other_types_than_text_are_read_as_json(types, pair, value):
    name = pair.partition("=")[0]
    assert read_inputs([pair], types)[name] == value


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("messages=hi", """messages: "hi" is not of type "array"; write JSON such as"""),
        ('messages=["hi"]', 'messages: an item is not of type "object"'),
        ("names=[1]", 'names: an item is not of type "string"'),
        ("schema=[]", 'schema: "[]" is not of type "object"'),
        ("stream=1", 'stream: "1" is not of type "boolean"; write true or false'),
        ("kind=c", 'kind: "c" is not one of ["a", "b"]'),
        ("top_p=1.5", "top_p: 1.5 is greater than the maximum of 1"),
        ("word=a", "word: 1 characters, at least 2 are needed"),
        ("word=abcde", "word: 5 characters, the limit is 4"),
    ],
)
def test_types_and_limits_of_all_kinds_are_checked(types, pair, message):
    with pytest.raises(BadInputError) as error:
        read_inputs([pair], types)
    assert message in str(error.value)


def test_missing_inputs_get_the_server_s_defaults(types):
    assert read_inputs([], types) == {
        "messages": [],
        "stop": [],
        "names": [],
        "schema": None,
        "stream": True,
        "kind": "a",
        "top_p": 0.9,
        "word": "abc",
    }


def test_inputs_are_described_with_type_default_and_description(types):
    lines = describe_inputs(types).splitlines()
    assert lines[0] == "  messages (array, default []): A conversation."
    assert lines[5] == '  kind (one of a, b, default "a"): '
    assert describe_inputs(SCHEMA).splitlines()[0].startswith("  nlq (string, required): The question")
