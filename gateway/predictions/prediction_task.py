"""Asks the servers for one prediction until one answers it, and ends it when it is cancelled or takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from types import MappingProxyType

from gateway.errors import InvalidInputError
from gateway.predictions.live_prediction import LivePrediction, OutputTooLargeError
from gateway.predictions.prediction import Prediction, Status
from gateway.predictions.store import INTERRUPTED
from gateway.upstream.model_server import UpstreamBusyError, UpstreamError
from gateway.upstream.pool import Pool, Server, Turn

_log = logging.getLogger(__name__)
CANCEL_SECONDS = 3.0  # for a server to cancel; then its stream is closed, which cancels as well
MAX_ATTEMPTS = 3  # servers that may fail before a prediction does


class PredictionTimeoutError(Exception):
    """A prediction ran for too long."""


class PredictionTask:
    """The task that asks servers for one prediction until one has answered it.

    Args:
        live: the prediction, which grows by what a server answers.
        pool: the servers.
        prefix, turn: what `Pool.lease` takes.
        max_seconds: the limit of the prediction's time on a server.
        context: more of what `ModelServer.predict` takes as context.
    """

    def __init__(
        self,
        live: LivePrediction,
        pool: Pool,
        prefix: bytes | None,
        turn: Turn,
        max_seconds: float,
        context: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.live = live
        self.supervisor: asyncio.Task[None] | None = None
        self._pool = pool
        self._prefix = prefix
        self._turn = turn
        self._max_seconds = max_seconds
        self._context = context
        self._asking: asyncio.Task[Prediction] | None = None
        self._server: Server | None = None
        self._end: tuple[Status, str | None] | None = None  # why `_asking` is cancelled
        self._canceling: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End the prediction because its caller wants no more of it."""
        if self._end is None:
            self._end = (Status.CANCELED, None)
            self._canceling = asyncio.create_task(self._cancel())

    def interrupt(self) -> None:
        """End the prediction because the gateway stops."""
        self._end = self._end or (Status.FAILED, INTERRUPTED)
        if self._asking is not None:
            self._asking.cancel()

    async def run_to_end(self) -> Prediction:
        """Run the prediction; returns its final state."""
        self._asking = asyncio.create_task(self._ask_servers())
        if self._end is not None:  # cancelled before it started
            self._asking.cancel()
        await asyncio.wait([self._asking])
        if self._canceling is not None:
            self._canceling.cancel()
        if self._asking.cancelled():
            status, reason = self._end or (Status.FAILED, INTERRUPTED)
            return self.live.ended(status, error=reason)
        match self._asking.exception():
            case None:
                return self._asking.result()
            case InvalidInputError() as refusal:
                self.live.settle(refusal)
                return self.live.ended(Status.FAILED, error=str(refusal))
            case UpstreamError() | OutputTooLargeError() | PredictionTimeoutError() as error:
                return self.live.ended(Status.FAILED, error=str(error))
            case error:
                _log.error("prediction %s failed", self.live.id, exc_info=error)
                return self.live.ended(Status.FAILED, error="internal error of the gateway; its log has the reason")

    async def _ask_servers(self) -> Prediction:
        attempt = 1
        while True:
            if not self._pool.has_room(self._turn):
                self.live.settle()
            try:
                async with self._pool.lease(self._prefix, self._turn) as server:
                    return await self._ask(server)
            except UpstreamBusyError:
                self._pool.report_full(server)
            except UpstreamError as error:
                if not server.num_silent:  # else a health check has ejected it
                    self._pool.report_broken(server, str(error))
                if self.live.is_seen:
                    raise UpstreamError(f"the server ended while it answered: {error}") from error
                if attempt == MAX_ATTEMPTS:
                    raise UpstreamError(f"{attempt} servers failed; the last error: {error}") from error
                self.live.forget_output()
                attempt += 1

    async def _ask(self, server: Server) -> Prediction:
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(self._max_seconds)
        server.on_silence[self] = lambda: limit.reschedule(loop.time())
        try:
            async with limit:
                return await self._read(server)
        except TimeoutError as error:
            if server.num_silent:
                raise UpstreamError(f"no answer to health checks: {server.trouble}") from error
            raise PredictionTimeoutError(f"over the limit of {self._max_seconds:g} seconds") from error
        finally:
            del server.on_silence[self]
            self._server = None

    async def _read(self, server: Server) -> Prediction:
        with self.live.trace.asking(server.upstream.url) as trace_context:
            inputs, context = self.live.snapshot().input, {**trace_context, **self._context}
            async with server.upstream.predict(self.live.id, inputs, context) as events:
                self._server = server
                self.live.begin()
                async for event in events:
                    if event.name == "completed":
                        return self.live.completed(event.data)
                    self.live.apply(event)
            raise UpstreamError("its stream ended before the prediction did")

    async def _cancel(self) -> None:
        """Ask the server to cancel; it then says how the prediction ended. If it does not, end the stream."""
        if self._server is not None:
            with contextlib.suppress(UpstreamError):
                await self._server.upstream.cancel(self.live.id)
                await asyncio.sleep(CANCEL_SECONDS)
        if self._asking is not None:
            self._asking.cancel()


async def ask_apart(
    prediction: Prediction,
    pool: Pool,
    turn: Turn,
    *,
    seconds: float,
    max_bytes: int,
    context: Mapping[str, str] = MappingProxyType({}),
) -> Prediction:
    """The end of a prediction that is neither kept nor counted nor shown.

    Args:
        prediction: what is asked.
        pool, turn, context: what `PredictionTask` takes.
        seconds: how long it may wait and run; then it fails with `INTERRUPTED`.
        max_bytes: the limit of its output and logs together.
    """
    task = PredictionTask(LivePrediction(prediction, max_bytes=max_bytes), pool, None, turn, seconds, context)
    running = asyncio.create_task(task.run_to_end(), name=f"apart {prediction.id}")
    try:
        await asyncio.wait([running], timeout=seconds)
    finally:  # also where who asks is cancelled
        task.interrupt()
        final = await running
    return final
