"""Inputs of scripts/predict: held to the same schema, with the same words, as Cog's server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from _inputs import BadInputError, read_inputs  # noqa: E402

SCHEMA = json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8"))


def test_values_are_read_by_type_and_defaults_filled_in():
    assert read_inputs(["nlq=a=b", "cols=['x']", "seed=0"], SCHEMA) == {
        "nlq": "a=b",
        "cols": "['x']",
        "max_tokens": 512,
        "seed": 0,
    }


def test_a_value_may_come_from_a_file(tmp_path):
    (tmp_path / "columns.txt").write_text("['é']", encoding="utf-8")
    assert read_inputs(["nlq=a", f"cols=@{tmp_path}/columns.txt"], SCHEMA)["cols"] == "['é']"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["nlq"], "'nlq' has no '='"),
        (["nlq=a"], "cols: Field required"),
        (
            ["nlq=a", "cols=a", "col=b"],
            "col: no such input; there are nlq, cols, max_tokens, seed; did you mean cols?",
        ),
        (["nlq=a", "nlq=b"], "nlq: given twice"),
        (["nlq=a", "cols=a", "max_tokens=0"], "max_tokens: 0 is less than the minimum of 1"),
        (["nlq=a", "cols=a", "max_tokens=2501"], "max_tokens: 2501 is greater than the maximum of 2500"),
        (["nlq=a", "cols=a", "max_tokens=1e3"], 'max_tokens: "1e3" is not of type "integer"'),
        (["nlq=a", "cols=a", "seed="], 'seed: "" is not of type "integer"'),
        (["nlq=a", "cols=@/no/such/file"], "cols: cannot read /no/such/file: No such file or directory"),
    ],
)
def test_what_the_server_would_refuse_is_refused_by_name(pairs, message):
    with pytest.raises(BadInputError) as error:
        read_inputs(pairs, SCHEMA)
    assert message in str(error.value)
