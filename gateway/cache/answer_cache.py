"""Finds the kept answer to a request that was made before, and remembers new ones."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from pydantic import JsonValue

from gateway.cache.answer_table import AnswerTable
from gateway.cache.cache_key import cache_key
from gateway.cache.cache_use import CacheUse
from gateway.meters import Meters
from gateway.model_info import ModelInfo
from gateway.predictions import Prediction
from gateway.settings import GatewaySettings
from gateway.store import Store

_log = logging.getLogger(__name__)
CACHED: Final = "cached"  # metric: true for an answer from the cache, false for one that the cache keeps
ORIGINAL: Final = "cached_from"  # metric: the prediction that the model answered, for its owner only
# Metrics that describe the answer. The others say what the model's work cost, and now it has not worked.
_OF_ANSWER: Final = ("input_token_count", "output_token_count", "finish_reason", "logprobs", "token_trace")


class AnswerCache:
    """The cache of one gateway.

    Args:
        table: where answers are looked up.
        store: of the predictions.
        read_model: the schema and version that are served.
        meters: hits and misses are counted there.
        is_shared: whether a caller gets answers that other keys' predictions had.
    """

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

    async def entry_for(self, prediction: Prediction, use: CacheUse) -> CacheEntry | None:
        """The place of a new prediction's answer; None if it may not have one.

        Raises:
            UnavailableError: the model's schema cannot be read.
        """
        if use is CacheUse.NONE:
            return None
        info = await self._read_model()
        if info.version != prediction.version:  # the servers got another model just now
            return None
        owner = None if self._is_shared else prediction.owner
        key = cache_key(prediction, info.input_properties, owner)
        return None if key is None else CacheEntry(self, key, may_answer=use is CacheUse.NORMAL)

    async def find(self, key: str) -> Prediction | None:
        """The prediction that has the answer."""
        try:
            found = await self._table.find(key)
            original = None if found is None else await self._store.get(found)
        except sqlite3.Error:
            _log.exception("the cache could not be read")
            original = None
        (self._meters.cache_misses if original is None else self._meters.cache_hits).inc()
        return original

    async def keep(self, key: str, prediction_id: str) -> None:
        """Remember a prediction that the store has.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        await self._table.keep(key, prediction_id)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The place of one answer.

    Args:
        cache: that it is in.
        key: of the request.
        may_answer: whether the caller takes an answer that is there.
    """

    cache: AnswerCache
    key: str
    may_answer: bool

    async def find(self) -> Prediction | None:
        """The prediction that has the answer."""
        return await self.cache.find(self.key) if self.may_answer else None

    async def keep(self, prediction: Prediction) -> None:
        """Remember a prediction that the store has.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        await self.cache.keep(self.key, prediction.id)


async def open_cache(
    settings: GatewaySettings, store: Store, read_model: Callable[[], Awaitable[ModelInfo]], meters: Meters
) -> AnswerCache | None:
    """The cache that the settings ask for; `check_cache` has found that it can work.

    Args:
        settings: of the gateway.
        store: of the predictions, open.
        read_model: see `AnswerCache`.
        meters: see `AnswerCache`.
    """
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
    """The metrics of a prediction with the answer of another one.

    Args:
        original: has the answer.
        owner: of the new prediction; the original's id is shown to its own owner only.
    """
    metrics = {name: original.metrics[name] for name in _OF_ANSWER if name in original.metrics}
    if "input_token_count" in metrics:
        metrics["cached_token_count"] = metrics["input_token_count"]  # none of them was computed
    own = {ORIGINAL: original.id} if original.owner == owner else {}
    return {**metrics, CACHED: True, **own}


def is_from_cache(prediction: Prediction) -> bool:
    """Whether the answer came from the cache."""
    return prediction.metrics.get(CACHED) is True
