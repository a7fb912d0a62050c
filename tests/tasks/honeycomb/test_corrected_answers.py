"""A query that a person wrote is refused, or shown as the model would have shown it, in both surfaces."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.config import Settings
from serving.model import Model
from tasks.errors import OutputError
from tests.cog.tiny_weights import make_tiny_weights

INPUTS = {"nlq": "errors by route", "cols": "['http.route', 'error']"}


@pytest.fixture(params=["json", "python-repr", "copied"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """Models of both surfaces, and one that may write only values that the question has."""
    is_copied = request.param == "copied"
    options = {"surface": "json", "values": "copied"} if is_copied else {"surface": request.param}
    task = {"task": "honeycomb", "name": "tiny", "prompt": "columns-first", **options}
    for name, value in {**make_tiny_weights(tmp_path, task=task), "ENGINE": "fake"}.items():
        monkeypatch.setenv(name, value)
    model = Model.load(Settings())
    yield model
    model.close()
    gc.unfreeze()


def test_a_right_query_becomes_canonical(model: Model):
    inputs = {**INPUTS, "nlq": "the first 10 errors by route"}
    written = (
        '{\n  "calculations": [{"op": "COUNT"}],\n  "breakdowns": ["http.route"], "time_range": 7200, "limit": 10\n}'
    )
    shown = '{"breakdowns": ["http.route"], "calculations": [{"op": "COUNT"}], "limit": 10}'
    assert model.check(inputs, written) == shown
    assert model.check(inputs, shown) == shown


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ('{"breakdowns": ["route"]}', "http.route"),
        ('{"calculations": [{"op": "MEAN", "column": "error"}]}', "MEAN"),
        ('{"calculations": [{"op": "COUNT"}], "orders": [{"op": "SUM", "column": "error"}]}', "orders"),
        ("{", "JSON"),
    ],
)
def test_a_wrong_one_is_refused_and_never_repaired(model: Model, answer: str, problem: str):
    with pytest.raises(OutputError, match=problem):
        model.check(INPUTS, answer)


def test_what_the_grammar_keeps_the_model_from_writing_is_refused(model: Model):
    with pytest.raises(OutputError, match=r"the model cannot write this answer: after .* does not allow"):
        model.check(INPUTS, '{"filters": [{"column": "error", "op": "=", "value": "%s"}]}' % ("x" * 300))
