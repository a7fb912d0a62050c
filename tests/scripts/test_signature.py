"""What Cog reads from predict.py, and the Python that it would misread."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from _signature import SignatureError, read_inputs  # noqa: E402


def inputs_of(parameter: str, before: str = "") -> dict:
    source = f"{before}\nclass Predictor:\n    async def predict(self, {parameter}) -> str: ...\n"
    return read_inputs(source, "Predictor")


def test_the_schema_that_is_checked_in_is_what_predict_py_says():
    """Else run scripts/write_schema."""
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))
    source = (ROOT / "predict.py").read_text("utf-8")
    assert document["components"]["schemas"]["Input"] == read_inputs(source, "Predictor")


def test_the_document_lets_cog_stream_text():
    document = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))
    assert document["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert document["components"]["schemas"]["Output"]["x-cog-array-display"] == "concatenate"


def test_an_input_with_every_kind_of_limit():
    schema = inputs_of(
        'a: str = Input(description="It is.", min_length=1, max_length=9, regex="^a"), '
        "b_c: int = Input(default=-5, ge=-10, le=10), d: float | None = Input(default=None)"
    )
    assert schema["required"] == ["a"]
    assert schema["properties"] == {
        "a": {
            "x-order": 0,
            "title": "A",
            "type": "string",
            "description": "It is.",
            "minLength": 1,
            "maxLength": 9,
            "pattern": "^a",
        },
        "b_c": {
            "x-order": 1,
            "title": "B C",
            "type": "integer",
            "default": -5,
            "minimum": -10,
            "maximum": 10,
        },
        "d": {"x-order": 2, "title": "D", "type": "number", "nullable": True, "default": None},
    }


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ('a: str = Input("a")', "positional"),
        ("a: int = Input(default=LIMIT)", "write its value"),
        ("a: int = Input(ge=1_000)", "one plain literal"),
        ("a: int = Input(ge=2 * 5)", "one plain literal"),
        ('a: str = Input(description=f"{1}")', "misread"),
        ('a: str = Input(description="a\\n")', "one plain literal"),
        ('a: str = Input(description="a" "b")', "one plain literal"),
        ('a: str = Input(description=u"a")', "one plain literal"),
        ("a: str = Input(default=None)", "needs the type `str | None`"),
        ("a: str = cog.Input()", "sees only `Input"),
        ("a: str = make()", "sees only `Input"),
        ("a: list = Input()", "type `list`"),
        ("a=Input()", "type ``"),
        ("a: str", "give every input"),
        ('a: str = Input(choices=["b"])', "not choices"),
        ("a: str = Input(**more)", "not None"),
        ("*a", "name each input"),
        ("**a", "name each input"),
    ],
)
def test_what_cog_would_misread_is_an_error_with_its_line(parameter, message):
    with pytest.raises(SignatureError, match=r"predict\.py line 3: ") as error:
        inputs_of(parameter)
    assert message in str(error.value)


def test_a_missing_predict_is_told():
    with pytest.raises(SignatureError, match="no class Predictor"):
        read_inputs("class Predictor: pass", "Predictor")
