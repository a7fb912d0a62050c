"""Equal requests share a key, and requests whose answer may differ have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cache.answer_cache import cache_key
from gateway.predictions.prediction import Prediction, now

# As Cog writes them for the schema task and the chat task.
SCHEMA = {
    "text": {"type": "string"},
    "max_tokens": {"type": "integer", "nullable": True, "default": None},
    "temperature": {"type": "number", "default": 0.0},
    "seed": {"type": "integer", "nullable": True, "default": None},
}
CHAT = {**SCHEMA, "temperature": {"type": "number", "nullable": True, "default": None}, "messages": {"default": []}}
HONEYCOMB = {"nlq": {"type": "string"}, "cols": {"type": "string"}, "max_tokens": {"type": "integer", "default": 512}}


def of(inputs) -> Prediction:
    return Prediction("id", "local/model", "v" * 64, inputs, now(), weights_digest="d" * 64)


def key(properties, **inputs) -> str | None:
    return cache_key(of(inputs), properties, None)


@pytest.mark.parametrize(
    ("properties", "one", "other"),
    [
        (SCHEMA, {"text": "a"}, {"text": "a", "temperature": 0}),
        (SCHEMA, {"text": "a"}, {"temperature": 0.0, "text": "a", "seed": None, "max_tokens": None}),
        (SCHEMA, {"text": "a", "max_tokens": 7}, {"text": "a", "max_tokens": 7.0}),
        (HONEYCOMB, {"nlq": "a", "cols": "b"}, {"cols": "b", "nlq": "a", "max_tokens": 512}),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "a"}], "temperature": 0},
            {"messages": [{"content": "a", "role": "user"}], "temperature": 0.0, "max_tokens": None},
        ),
    ],
)
def test_defaults_order_and_spelling_do_not_matter(properties, one, other):
    assert key(properties, **one) == key(properties, **other) is not None


def test_different_inputs_have_different_keys():
    others = [{"text": "b"}, {"text": "a "}, *({"text": "a", name: 1} for name in ("max_tokens", "seed", "stop"))]
    keys = {key(SCHEMA, text="a"), *(key(SCHEMA, **other) for other in others)}
    assert len(keys - {None}) == 6


def test_an_answer_of_an_adapter_is_not_cached_because_its_file_may_change_under_its_name():
    with_adapter = {**SCHEMA, "adapter": {"type": "string", "nullable": True, "default": None}}
    assert key(with_adapter, text="a") is not None
    assert key(with_adapter, text="a", adapter=None) is not None
    assert key(with_adapter, text="a", adapter="sql") is None


def test_owner_weights_and_version_are_part_of_the_key():
    prediction = of({"text": "a"})
    others = [replace(prediction, weights_digest="e" * 64), replace(prediction, version="w" * 64)]
    keys = {cache_key(one, SCHEMA, None) for one in (prediction, *others)}
    assert len(keys | {cache_key(prediction, SCHEMA, "alice"), cache_key(prediction, SCHEMA, "bob")}) == 5


@pytest.mark.parametrize(
    ("properties", "inputs"),
    [
        (SCHEMA, {"text": "a", "temperature": 0.7}),
        (SCHEMA, {"text": "a", "temperature": 0.7, "seed": 1}),
        (CHAT, {"text": "a"}),  # the package's own temperature is unknown here
        (CHAT, {"text": "a", "temperature": None}),
        ({"text": {"type": "string"}, "seed": {"type": "integer"}}, {"text": "a"}),
        ({"file": {"type": "string", "format": "uri"}}, {"file": "https://a.b/c"}),
        ({"files": {"type": "array", "items": {"type": "string", "format": "uri"}}}, {"files": ["https://a.b/c"]}),
    ],
)
def test_what_may_be_answered_differently_has_no_key(properties, inputs):
    assert key(properties, **inputs) is None
