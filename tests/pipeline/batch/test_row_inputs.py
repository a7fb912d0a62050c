"""Inputs of predictions from columns: the same checks as Cog's server, and no file is ever read."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.batch.errors import BatchError
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row
from pipeline.package.command_inputs import BadInputError

SCHEMA = {
    "components": {
        "schemas": {
            "Input": {
                "properties": {
                    "text": {"type": "string"},
                    "max_tokens": {"type": "integer", "default": 512, "minimum": 1, "maximum": 100},
                    "format": {"allOf": [{"$ref": "#/components/schemas/format"}], "default": "a"},
                    "messages": {"type": "array", "items": {"type": "object"}, "default": []},
                    "adapter": {"type": "string", "nullable": True, "default": None},
                },
                "required": ["text"],
            },
            "format": {"type": "string", "enum": ["a", "b"]},
        }
    }
}
DEFAULTS = {"max_tokens": 512, "format": "a", "messages": [], "adapter": None}


def inputs(values: dict[str, Any], sources: dict[str, str] | None = None, *constants: str) -> dict[str, Any]:
    return RowInputs(SCHEMA, tuple(values), sources or {}, constants).of(Row(0, values))


def test_columns_are_found_by_name_by_mapping_or_are_constant() -> None:
    assert inputs({"text": "a", "other": 5}) == {**DEFAULTS, "text": "a"}
    assert inputs({"text": "a", "q": "b"}, {"text": "q"}) == {**DEFAULTS, "text": "b"}
    assert inputs({"text": "a", "format": "x"}, {}, "format=b") == {**DEFAULTS, "text": "a", "format": "b"}


def test_values_are_converted_to_the_type_of_their_input() -> None:
    """As text, which CSV has, and as JSON values."""
    text = {"text": "5", "max_tokens": "7", "messages": '[{"role": "user"}]', "format": "b"}
    typed = {"text": "5", "max_tokens": 7, "messages": [{"role": "user"}], "format": "b"}
    assert inputs(text) == inputs(typed) == {**DEFAULTS, **typed}
    assert inputs({"text": ["a", "é"]})["text"] == '["a", "é"]'


def test_nothing_and_null_mean_left_out() -> None:
    assert inputs({"text": "a", "max_tokens": "", "format": None}) == {**DEFAULTS, "text": "a"}
    assert inputs({"text": ""})["text"] == ""


@pytest.mark.parametrize(
    "values",
    [
        {"text": None},
        {"text": 5},
        {"text": "a", "max_tokens": 101},
        {"text": "a", "max_tokens": "101"},
        {"text": "a", "max_tokens": "many"},
        {"text": "a", "max_tokens": 1.5},
        {"text": "a", "format": "c"},
        {"text": "a", "messages": ["no object"]},
    ],
)
def test_wrong_values_are_refused_with_the_name_of_the_input(values: dict[str, Any]) -> None:
    wrong = next(reversed(values))
    with pytest.raises(BadInputError, match=wrong):
        inputs(values)


def test_a_value_never_names_a_file() -> None:
    assert inputs({"text": "@/etc/passwd"})["text"] == "@/etc/passwd"


@pytest.mark.parametrize(
    ("columns", "sources", "constants", "message"),
    [
        (("q",), {}, (), "--input text=COLUMN"),
        (("text",), {"nothing": "text"}, (), "no such input"),
        (("text",), {"text": "q"}, (), "no such column"),
        (("text",), {}, ("text",), "has no '='"),
        (("text",), {}, ("max_tokens=0",), "minimum of 1"),
        (("text",), {"text": "text"}, ("text=a",), "both"),
    ],
)
def test_a_wrong_mapping_is_refused_before_the_run(columns, sources, constants, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        RowInputs(SCHEMA, columns, sources, constants)
