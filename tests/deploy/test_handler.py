"""The Hugging Face handler by its contract: made with the folder, called with the JSON of a request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.huggingface.handler import EndpointHandler, RefusedInputError
from tasks.honeycomb.query import parse_query
from tests.cog.tiny_weights import make_tiny_weights

GOOD = {"nlq": "count by name", "cols": ["name", "error"]}


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointHandler]:
    folder = tmp_path_factory.mktemp("endpoint")
    (folder / "weights").mkdir()
    settings = make_tiny_weights(folder / "weights")
    (folder / "weights.lock").write_text(Path(settings["WEIGHTS_LOCK"]).read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE", "fake")
        # Set and deleted, so that what the handler sets is undone at the end.
        for name in ("WEIGHTS_LOCK", "WEIGHTS_DIR"):
            patch.setenv(name, "")
            patch.delenv(name)
        made = EndpointHandler(str(folder))
        yield made
        made.model.engine.close()


def test_one_request(handler: EndpointHandler) -> None:
    answer = handler({"inputs": GOOD})
    parse_query(answer["output"], ["name", "error"])
    assert answer["input_tokens"] > 0
    assert answer["output_tokens"] > 0
    json.dumps(answer)


def test_a_list_keeps_its_order_and_each_its_own_error(handler: EndpointHandler) -> None:
    wrong = {"nlq": "x", "cols": "['a"}
    found = handler({"inputs": [GOOD, wrong, GOOD, {"nlq": "no columns"}], "parameters": {"max_tokens": 300}})
    assert [set(one) for one in found] == [
        {"output", "input_tokens", "output_tokens"},
        {"error"},
        {"output", "input_tokens", "output_tokens"},
        {"error"},
    ]
    assert found[0] == found[2]
    assert found[1]["error"].startswith("cols: ")
    assert "cols is missing" in found[3]["error"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "inputs must be an object; the model's inputs are nlq, cols"),
        ({"inputs": "a text"}, "inputs must be an object"),
        ({"inputs": {**GOOD, "temperature": 1}}, "temperature: no such input"),
        ({"inputs": GOOD, "parameters": {"max_tokens": 0}}, "max_tokens: 0 is less than the minimum"),
        ({"inputs": GOOD, "parameters": {"max_tokens": 1}}, "max_tokens: the answer was not complete"),
        ({"inputs": GOOD, "parameters": [1]}, "inputs must be"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(handler: EndpointHandler, request_, message: str) -> None:
    with pytest.raises(RefusedInputError, match=message):
        handler(request_)
