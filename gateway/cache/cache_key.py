"""Which requests the cache may answer, and the key that equal requests share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue

from gateway.predictions import Prediction

_SAMPLING: Final = {"seed", "top_p", "top_k", "min_p", "num_return_sequences"}  # a model that has these can sample

ADAPTER: Final = "adapter"  # an input that names one; the weights' digest does not say what the name stands for


def cache_key(prediction: Prediction, properties: Mapping[str, Any], owner: str | None) -> str | None:
    """The same for predictions that have the same answer; None where the answer may differ each time.

    Args:
        prediction: that is asked for.
        properties: JSON Schemas of the model's inputs by name.
        owner: whose answers are found; None: everybody's.
    """
    inputs = complete_inputs(prediction.input, properties)
    if not is_greedy(inputs, properties) or _reads_files(inputs, properties) or ADAPTER in inputs:
        return None
    # Cog sorts the keys of objects as well, so their order cannot change an answer.
    text = json.dumps([owner, prediction.weights_digest, prediction.version, inputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def complete_inputs(inputs: Mapping[str, JsonValue], properties: Mapping[str, Any]) -> dict[str, JsonValue]:
    """The inputs with the schema's defaults, without nulls, and with one way to write a number."""
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    complete = {**defaults, **inputs}
    return {name: _plain(value) for name, value in complete.items() if value is not None}


def is_greedy(inputs: Mapping[str, JsonValue], properties: Mapping[str, Any]) -> bool:
    """Whether the model takes the likeliest token each time: `temperature` is 0, or there is nothing to sample with.

    Without a value and without a default in the schema, the temperature is the package's own, which may be any.
    """
    if "temperature" in properties:
        return inputs.get("temperature") == 0
    return _SAMPLING.isdisjoint(properties)


def _reads_files(inputs: Mapping[str, JsonValue], properties: Mapping[str, Any]) -> bool:
    """Whether an input is the address of a file, whose content may change."""
    schemas = [properties.get(name, {}) for name in inputs]
    return any("uri" in (schema.get("format"), schema.get("items", {}).get("format")) for schema in schemas)


def _plain(value: JsonValue) -> JsonValue:
    """Clients write the same number as 0 or as 0.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
