"""Finds the kept answer to a request that was made before, and remembers new ones."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import Any, Final

from pydantic import JsonValue
from starlette.datastructures import Headers

from gateway.cache.answer_table import AnswerTable
from gateway.errors import UnavailableError
from gateway.metrics.meters import Meters
from gateway.predictions.prediction import Prediction
from gateway.predictions.store import Store
from gateway.settings import GatewaySettings
from gateway.upstream.model_info import ModelInfo

_log = logging.getLogger(__name__)
CACHED: Final = "cached"  # metric: true for an answer from the cache, false for one that the cache keeps
ORIGINAL: Final = "cached_from"  # metric: the prediction that the model answered, for its owner only
# Metrics that describe the answer. The others say what the model's work cost, and now it has not worked.
_OF_ANSWER: Final = (
    "input_token_count",
    "output_token_count",
    "finish_reason",
    "logprobs",
    "token_trace",
    "confidence",
)
_SAMPLING: Final = {"seed", "top_p", "top_k", "min_p", "num_return_sequences"}  # a model that has these can sample
ADAPTER: Final = "adapter"  # an input that names one; the weights' digest does not say what the name stands for


class AnswerCache:
    """The cache of one gateway. Only a shared one gives a caller the answers that other keys' predictions had."""

    def __init__(
        self,
        table: AnswerTable,
        store: Store,
        read_model: Callable[[], Awaitable[ModelInfo]],
        meters: Meters,
        *,
        is_shared: bool,
    ) -> None:
        self._table = table
        self._store = store
        self._read_model = read_model
        self._meters = meters
        self._is_shared = is_shared

    async def close(self) -> None:
        """Close the table."""
        await self._table.close()

    async def key_of(self, prediction: Prediction) -> str | None:
        """The key of a new prediction's answer; None if it may not have one.

        Raises:
            UnavailableError: the model's schema cannot be read.
        """
        info = await self._read_model()
        if info.version != prediction.version:  # the servers got another model just now
            return None
        return cache_key(prediction, info.input_properties, None if self._is_shared else prediction.owner)

    async def find(self, key: str) -> Prediction | None:
        """The prediction that has the answer to a request; None if there is none, or the table cannot be read."""
        try:
            found = await self._table.find(key)
            original = None if found is None else await self._store.get(found)
        except sqlite3.Error:
            _log.exception("the cache could not be read")
            original = None
        (self._meters.cache_misses if original is None else self._meters.cache_hits).inc()
        return original

    async def keep(self, key: str, prediction: Prediction) -> None:
        """Remember a prediction that the store has, unless the servers have another version meanwhile.

        Raises:
            sqlite3.Error: the table cannot be written.
        """
        try:
            version = (await self._read_model()).version
        except UnavailableError:
            return
        if version == prediction.version:  # else another one may have answered
            await self._table.keep(key, prediction.id)


async def open_cache(
    settings: GatewaySettings, store: Store, read_model: Callable[[], Awaitable[ModelInfo]], meters: Meters
) -> AnswerCache | None:
    """The cache that the settings ask for, of an open store; `GatewaySettings.check` has found that it can work."""
    if settings.cache_mb is None:
        return None
    max_age = timedelta(days=settings.cache_days)
    table = AnswerTable(settings.database, max_bytes=round(settings.cache_mb * 1e6), max_age=max_age)
    await table.open()
    meters.cache_bytes.set_function(lambda: table.num_bytes)
    return AnswerCache(table, store, read_model, meters, is_shared=settings.cache_shared)


def marked_as_new(final: Prediction) -> Prediction:
    """A prediction whose answer the cache keeps, with the metric that says so."""
    return replace(final, metrics={**final.metrics, CACHED: False})


def metrics_of_copy(original: Prediction, owner: str | None) -> dict[str, JsonValue]:
    """The metrics of an owner's prediction with another one's answer; that one's id is shown to its own owner only."""
    metrics = {name: original.metrics[name] for name in _OF_ANSWER if name in original.metrics}
    if "input_token_count" in metrics:
        metrics["cached_token_count"] = metrics["input_token_count"]  # none of them was computed
    own = {ORIGINAL: original.id} if original.owner == owner else {}
    return {**metrics, CACHED: True, **own}


def is_from_cache(prediction: Prediction) -> bool:
    """Whether the answer came from the cache."""
    return prediction.metrics.get(CACHED) is True


class CacheUse(Enum):
    """What the cache may do for one request."""

    NORMAL = "give an answer, or keep the new one"
    REFRESH = "keep the new answer, and give no old one"
    NONE = "neither give nor keep"

    @classmethod
    def of(cls, headers: Headers) -> CacheUse:
        """The use that a request's headers allow.

        `Cache-Control: no-cache` asks for a new answer, and `no-store` also that it is not kept.
        """
        directives = {part.strip().lower() for part in headers.get("cache-control", "").split(",")}
        if "no-store" in directives:
            return cls.NONE
        return cls.REFRESH if "no-cache" in directives else cls.NORMAL


def cache_key(prediction: Prediction, properties: Mapping[str, Any], owner: str | None) -> str | None:
    """A text that is the same for predictions with the same answer; None where the answer may differ each time.

    Args:
        prediction: the prediction that is asked for.
        properties: the JSON Schemas of the model's inputs by name.
        owner: the caller whose answers are found; None for everybody's.
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
    """A value with one way to write a number: clients write 0 or 0.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
