"""The parts of a running gateway, and how a request's handler gets them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Depends, Request

from gateway.cache.answer_cache import open_cache
from gateway.corrections.correction_file import CorrectionFile
from gateway.http.webhook_client import WebhookClient
from gateway.keys.callers import Caller, Callers
from gateway.keys.key_file import KeyFile
from gateway.metrics.meters import Meters
from gateway.predictions.input_files import FILES_OF_CALLER, InputFiles
from gateway.predictions.prediction import Prediction, timestamp
from gateway.predictions.runner import Runner
from gateway.predictions.store import Store
from gateway.settings import GatewaySettings, ServerList, SettingsError
from gateway.shadow.shadow import Shadow, open_shadow
from gateway.upstream.model_info import ModelInfoReader
from gateway.upstream.model_server import ModelServer, Upstream
from gateway.upstream.pool import Pool

_log = logging.getLogger(__name__)
FILE_SECONDS = 0.2  # between two looks at the file of the servers
DELETE_SECONDS = 60.0  # between two deletions of what is too old
_UNKEPT = timedelta(minutes=10)  # time for a client to read a prediction that is not kept


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a gateway, which handlers use.

    Args:
        settings: the settings of this process.
        pool: the Cog servers.
        store: the database of the predictions.
        runner: what starts predictions and holds those that run.
        model: what is known of the model that the servers run.
        interrupted: the predictions that ran when the last gateway was killed.
        meters: what is counted and measured.
        webhooks: the client that sends webhooks.
        files: the files that callers have sent as inputs.
        corrections: the corrections; None where nothing is kept.
        shadow: what asks a candidate version too; None for no candidate.
        callers: those who may call; None for everybody.
        caller: who calls; None where nobody was asked for a key.
    """

    settings: GatewaySettings
    pool: Pool
    store: Store
    runner: Runner
    model: ModelInfoReader
    interrupted: tuple[Prediction, ...]
    meters: Meters
    webhooks: WebhookClient
    files: InputFiles
    corrections: CorrectionFile | None = None
    shadow: Shadow | None = None
    callers: Callers | None = None
    caller: Caller | None = None

    @property
    def is_admin(self) -> bool:
        """Whether the caller may decide on corrections: everybody may where no keys are asked for."""
        return self.callers is None or (self.caller is not None and self.caller.key.is_admin)

    def of(self, caller: Caller) -> Gateway:
        """The gateway as one caller may use it. The predictions and files of others are not even for admins."""
        name, runner, files = caller.name, self.runner.of(caller), self.files.of(caller.name)
        own = self.corrections if self.corrections is None or caller.key.is_admin else self.corrections.of(name)
        return replace(self, store=self.store.of(name), runner=runner, files=files, corrections=own, caller=caller)


async def get_gateway(request: Request) -> Gateway:
    """The gateway as the request's caller may use it; for `Depends`.

    Raises:
        UnauthorizedError: the gateway asks for keys, and the request has none that is valid.
    """
    gateway = await get_whole_gateway(request)
    if gateway.callers is None:
        return gateway
    caller = gateway.callers.identify(request)
    request.scope["gateway_caller"] = caller.name  # for the log
    return gateway.of(caller)


async def get_whole_gateway(request: Request) -> Gateway:
    """The gateway without a look at the caller's key: for health checks, and for links whose id is their secret."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway), "the application has started"
    return gateway


TheGateway = Annotated[Gateway, Depends(get_gateway)]
WholeGateway = Annotated[Gateway, Depends(get_whole_gateway)]


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings, servers: Callable[[], Sequence[ModelServer]] | None = None
) -> AsyncIterator[Gateway]:
    """A gateway that works while the context lasts; then running predictions are finished or interrupted.

    `servers` makes the clients of the servers; None stands for those of the Cog servers in the settings.

    Raises:
        SettingsError: the settings do not fit together.
    """
    settings.check()
    async with AsyncExitStack() as stack:  # what is open already is closed when a later part cannot start
        store = Store(settings.database if settings.keep else None)
        interrupted = await store.open()
        stack.push_async_callback(store.close)
        if interrupted:
            _log.warning("%d predictions were interrupted when the gateway last stopped", len(interrupted))
        listed = settings.servers()
        upstreams = [Upstream(url) for url in listed.upstreams] if servers is None else servers()
        pool = Pool(upstreams, concurrency=settings.concurrency)
        stack.push_async_callback(pool.close)
        model = ModelInfoReader(pool, name=settings.model, weights_digest=listed.weights_digest)
        meters = Meters(settings.model)
        cache = await open_cache(settings, store, model.read, meters)
        if cache is not None:
            stack.push_async_callback(cache.close)
        runner = Runner(
            pool,
            store,
            check_inputs=model.check_inputs,
            prefix_inputs=settings.prefix_inputs,
            max_active=settings.max_active,
            max_output_bytes=settings.max_output_bytes,
            max_seconds=settings.max_seconds,
            cache=cache,
        )
        callers = Callers(KeyFile(settings.key_file)) if settings.keys == "required" else None
        if callers is not None:
            stack.callback(callers.close)
        corrections = CorrectionFile(settings.correction_file) if settings.keep else None
        if corrections is not None:
            stack.callback(corrections.close)
        webhooks = await stack.enter_async_context(WebhookClient(settings))
        await pool.start()
        shadow = await stack.enter_async_context(open_shadow(settings, model, corrections, meters.count_shadow))
        if shadow is not None:
            runner.on_start.append(shadow.follow)
        tasks = [asyncio.create_task(runner.save_changes()), asyncio.create_task(_delete_old(store, settings))]
        if settings.servers_file is not None:
            tasks.append(asyncio.create_task(_follow_file(settings, listed, pool, model)))
        stack.push_async_callback(_cancel, tasks)
        stack.push_async_callback(runner.close, 0)
        files = InputFiles(FILES_OF_CALLER * settings.max_body_bytes)
        yield Gateway(
            *(settings, pool, store, runner, model, interrupted, meters, webhooks, files),
            corrections=corrections,
            shadow=shadow,
            callers=callers,
        )


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _follow_file(settings: GatewaySettings, listed: ServerList, pool: Pool, model: ModelInfoReader) -> None:
    """Let other servers take over whenever the file of the servers names others."""
    trouble, taking = "", list[asyncio.Task[None]]()
    try:
        while True:
            await asyncio.sleep(FILE_SECONDS)
            try:
                found = await asyncio.to_thread(settings.servers)
            except SettingsError as error:
                if trouble != str(error):
                    _log.warning("the servers stay the same: %s", error)
                trouble = str(error)
                continue
            trouble = ""
            if found != listed:
                await _cancel(taking)  # those of before may never become ready
                listed, taking = found, [asyncio.create_task(_take_over(found, pool, model))]
    finally:
        await _cancel(taking)


async def _take_over(found: ServerList, pool: Pool, model: ModelInfoReader) -> None:
    def on_replaced() -> None:
        model.weights_digest = found.weights_digest

    await pool.replace([Upstream(url) for url in found.upstreams], on_replaced)
    _log.info("predictions go to %s now", ", ".join(server.upstream.name for server in pool.servers))


async def _delete_old(store: Store, settings: GatewaySettings) -> None:
    keep = _UNKEPT
    if settings.keep:
        if settings.retention_days is None:
            return
        keep = timedelta(days=settings.retention_days)
    while True:
        try:
            await store.delete_created_before(timestamp(datetime.now(UTC) - keep))
        except sqlite3.Error:
            _log.exception("old predictions could not be deleted; the gateway tries again")
        await asyncio.sleep(DELETE_SECONDS)
