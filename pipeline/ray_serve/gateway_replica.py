"""The gateway as the ingress of Ray Serve, which sees all replicas of the model as one server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from pydantic import JsonValue
from ray import serve
from ray.exceptions import RayError, TaskCancelledError
from ray.serve.exceptions import RayServeException

from gateway.app import create_app
from gateway.http.request_log import configure_logging
from gateway.settings import GatewaySettings
from gateway.upstream.model_info import ModelInfo
from gateway.upstream.model_server import UpstreamClosedError, UpstreamError, UpstreamEvent

MODEL: Final = "model"  # name of the application and of its deployment
GATEWAY: Final = "gateway"
_SECONDS: Final = 10.0  # for an answer of the controller
_SCHEMA_SECONDS: Final = 30.0  # the call may wait for predictions that a replica has
_PAUSE_SECONDS: Final = 0.2
_CANCELED: Final = UpstreamEvent("completed", {"status": "canceled"})


class RayUpstream:
    """See `gateway.upstream.model_server.ModelServer`. Requests wait in Ray Serve, whose autoscaling counts them."""

    def __init__(self) -> None:
        self.url = self.name = f"ray://{MODEL}"
        self._handle = serve.get_deployment_handle(MODEL, app_name=MODEL)
        self._running: dict[str, Any] = {}  # prediction → response
        self._is_settled = False  # whether the last check found no deployment under way
        self._info: ModelInfo | None = None

    @asynccontextmanager
    async def predict(
        self, prediction_id: str, inputs: Mapping[str, JsonValue], context: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[UpstreamEvent]]:
        """See `ModelServer.predict`. A prediction that waits for a replica counts as started."""
        if self._info is None:
            await self.openapi()
        assert self._info is not None, "openapi() sets it"
        self._info.check(inputs)
        response = self._handle.options(stream=True).predict.remote(dict(inputs), dict(context))
        self._running[prediction_id] = response
        try:
            yield _events(response)
        finally:
            del self._running[prediction_id]
            response.cancel()

    async def cancel(self, prediction_id: str) -> bool:
        """See `ModelServer.cancel`."""
        if (response := self._running.get(prediction_id)) is None:
            return False
        response.cancel()
        return True

    async def health(self) -> str:
        """READY while there is a replica; STARTING once after each deployment: the gateway then reads the schema again.

        Ray Serve's controller is asked: a replica that is full would not answer.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                status = await asyncio.to_thread(serve.status)
        except (RayError, RayServeException, TimeoutError) as error:
            if self._info is not None:
                self._is_settled = False  # a deployment may have passed unseen
                return "READY"  # replicas answer without the controller
            raise UpstreamClosedError(f"Ray Serve's controller does not answer: {error}") from error
        application = status.applications.get(MODEL)
        deployment = None if application is None else application.deployments.get(MODEL)
        if application is None or deployment is None or not deployment.replica_states.get("RUNNING"):
            raise UpstreamClosedError("no replica is running")  # predictions wait for the next
        was_settled, self._is_settled = self._is_settled, application.status == "RUNNING"
        if self._is_settled and not was_settled:
            self._info = None
            return "STARTING"
        return "READY"

    async def openapi(self) -> dict[str, Any]:
        """See `ModelServer.openapi`. Ray may ask a replica that has just died, so a failed call is repeated."""
        failure: Exception | None = None
        try:
            async with asyncio.timeout(_SCHEMA_SECONDS):
                while True:
                    try:
                        schema: dict[str, Any] = await self._handle.openapi.remote()
                    except (RayError, RayServeException) as error:
                        failure = error
                        await asyncio.sleep(_PAUSE_SECONDS)
                    else:
                        self._info = ModelInfo("", "", "", "", schema)
                        return schema
        except TimeoutError as error:
            raise UpstreamError(f"no replica answers: {_first_line(failure or error)}") from error

    async def close(self) -> None:
        """See `ModelServer.close`; Ray closes its connections itself."""


async def _events(response: Any) -> AsyncIterator[UpstreamEvent]:
    try:
        async for name, data in response:
            yield UpstreamEvent(name, data)
    except (asyncio.CancelledError, TaskCancelledError):
        if not response.cancelled():  # the reader itself was cancelled
            raise
        yield _CANCELED
    except (RayError, RayServeException) as error:
        raise UpstreamError(f"a replica failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def build_gateway() -> FastAPI:
    """The gateway's application, with the settings of its environment; called in the gateway's replica."""
    configure_logging()
    return create_app(GatewaySettings(), lambda: [RayUpstream()])


@serve.ingress(build_gateway)
class GatewayReplica:
    """The gateway. There is one, because it keeps the predictions."""
