"""Measures predictions, and shows all figures at `GET /metrics` as Prometheus reads them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import JsonValue

from gateway.cache.answer_cache import is_from_cache
from gateway.errors import GatewayError
from gateway.gateway import Gateway, TheGateway
from gateway.http.api import Api
from gateway.metrics.meters import Meters
from gateway.predictions.live_prediction import LivePrediction
from gateway.predictions.prediction import Prediction, Status, seconds_between
from gateway.predictions.store import INTERRUPTED
from gateway.upstream.pool import Server

_NAME: Final = re.compile(r"\w{1,60}")
_router = APIRouter()


@asynccontextmanager
async def observe(gateway: Gateway) -> AsyncIterator[None]:
    """Measure every prediction of a gateway, and show its servers."""
    meters, following = gateway.meters, set[asyncio.Task[None]]()
    pool = gateway.pool

    def watch() -> None:
        meters.forget_servers()
        for server in pool.servers:
            _watch(meters, server)

    watch()
    pool.on_replaced.append(watch)
    meters.running.set_function(lambda: pool.num_running)
    meters.waiting.set_function(lambda: pool.num_waiting)

    def on_start(live: LivePrediction) -> None:
        task = asyncio.create_task(_follow(live, meters), name=f"metrics of {live.id}")
        following.add(task)
        task.add_done_callback(following.discard)

    gateway.runner.on_start.append(on_start)
    try:
        yield
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def _watch(meters: Meters, server: Server) -> None:
    address = httpx.URL(server.upstream.url)  # host and port only: an address may hold a password
    name = f"{address.host}:{address.port}" if address.port else address.host
    meters.watch_server(name, lambda: server.is_healthy, lambda: server.outstanding)


async def _follow(live: LivePrediction, meters: Meters) -> None:
    if is_from_cache(live.snapshot()):  # it has ended already, and its times would hide those of the model
        _count_status(live.snapshot(), meters)
        return
    created = time.monotonic()
    last: float | None = None

    def time_piece() -> None:
        nonlocal last
        now = time.monotonic()
        if last is None:
            meters.first_token.observe(now - created)
        else:
            meters.inter_token.observe(now - last)
        last = now

    live.on_piece.append(time_piece)
    prediction = await live.answered()
    if await live.settled() is not None:
        return  # its inputs were refused
    if last is None and prediction.output is not None:  # of a model that does not stream
        time_piece()
    if prediction.status is Status.SUCCEEDED:
        meters.whole.observe(time.monotonic() - created)
    count_ended(prediction, meters)


def _count_status(prediction: Prediction, meters: Meters) -> None:
    """Count a prediction that ended."""
    meters.count_end(prediction.status.value)
    if prediction.status is Status.SUCCEEDED:
        meters.count_success(_word(prediction.metrics.get("finish_reason")) or "unknown")


def count_ended(prediction: Prediction, meters: Meters) -> None:
    """Add to the figures what a prediction's end and its metrics say."""
    metrics = prediction.metrics
    _count_status(prediction, meters)
    if prediction.status is Status.FAILED:
        meters.count_failure(_failure(prediction))
    if prediction.started_at is not None:
        meters.queue.observe(max(0.0, seconds_between(prediction.created_at, prediction.started_at)))
    meters.prompt_tokens.inc(_count(metrics.get("input_token_count")))
    meters.generation_tokens.inc(_count(metrics.get("output_token_count")))
    meters.passes.inc(_count(metrics.get("model_passes")))
    meters.draft_tokens.inc(_count(metrics.get("draft_token_count")))
    meters.accepted_tokens.inc(_count(metrics.get("accepted_token_count")))
    _count_drafts(metrics, meters)
    if "cached_token_count" in metrics:
        meters.queried_tokens.inc(_count(metrics.get("input_token_count")))
        meters.cached_tokens.inc(_count(metrics.get("cached_token_count")))
    if "kv_cache_usage" in metrics:
        meters.kv_usage.set(_count(metrics.get("kv_cache_usage")))


def _count_drafts(metrics: Mapping[str, JsonValue], meters: Meters) -> None:
    """Add the drafts of each kind, where the engine knows their kinds."""
    drafted, accepted = metrics.get("drafted_by_kind"), metrics.get("accepted_by_kind")
    if not isinstance(drafted, dict) or not isinstance(accepted, dict):
        return
    for kind, number in drafted.items():
        if _word(kind) is not None:
            meters.count_drafts(kind, drafted=_count(number), accepted=_count(accepted.get(kind, 0)))


def _failure(prediction: Prediction) -> str:
    """The error's name where the server gives one; else whether the model, the gateway or a server between failed."""
    if (name := _word(prediction.metrics.get("error_type"))) is not None:
        return name
    if prediction.error == INTERRUPTED:
        return "interrupted"
    # Cog puts this into the end of each prediction; without it the gateway ended the prediction.
    return "model" if "predict_time" in prediction.metrics else "upstream"


def _word(value: JsonValue) -> str | None:
    """A short name, or None; a server could write anything."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _count(value: JsonValue) -> float:
    """A number that is not negative, else 0: counters must not sink."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return 0.0
    return float(value)


@_router.get("/metrics")
async def metrics(gateway: TheGateway) -> Response:
    """All counters, gauges and histograms of this gateway since its start."""
    return Response(generate_latest(gateway.meters.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _render_error(request: Request, error: GatewayError) -> Response:
    return PlainTextResponse(f"{error.title}: {error.detail}\n", error.status)


METRICS = Api(_router, ("/metrics",), _render_error, open=observe)
