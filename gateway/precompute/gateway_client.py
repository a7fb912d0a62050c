"""Asks a gateway for predictions, and learns whether they came from its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import httpx

_WAIT_SECONDS: Final = 60  # the longest time for which a gateway holds an answer back
_POLL_SECONDS: Final = 1.0
_MAX_REFUSALS: Final = 10  # answers 503 in a row, while no Cog server is ready, before a line fails
_NOT_KEPT: Final = (
    "answered, but not kept: only greedy answers are; set temperature to 0 (a default in task.json is not enough)"
)


class Outcome(Enum):
    """What became of one line."""

    NEW = "new"
    CACHED = "already cached"


class LineError(Exception):
    """The gateway does not answer these inputs, or may not keep the answer."""


class GatewayUnusableError(Exception):
    """The gateway cannot be reached, refuses the key, or has no cache."""


class GatewayClient:
    """One gateway.

    Args:
        client: with the gateway's address and the caller's key.
        refresh: have every answer written again.
    """

    def __init__(self, client: httpx.AsyncClient, *, refresh: bool = False) -> None:
        self._client = client
        self._headers = {"Prefer": f"wait={_WAIT_SECONDS}"} | ({"Cache-Control": "no-cache"} if refresh else {})
        self._path = ""

    async def connect(self) -> None:
        """Check that the gateway has a cache, and ask for the name of its model.

        Raises:
            GatewayUnusableError: it cannot be used.
        """
        response = await self._send("GET", "/ready")
        ready = _content(response)
        if "cache" not in ready:  # it is there also while no Cog server is ready
            raise GatewayUnusableError(f"the gateway at {self._client.base_url}: {_reason(response)}")
        if not ready["cache"]:
            text = "start it with GATEWAY_CACHE_MB, for example GATEWAY_CACHE_MB=256 scripts/serve"
            raise GatewayUnusableError(f"the gateway at {self._client.base_url} has no cache of answers; {text}")
        response = await self._send("GET", "/v1/models")
        if response.status_code != httpx.codes.OK:
            raise GatewayUnusableError(f"the gateway at {self._client.base_url}: {_reason(response)}")
        self._path = f"/v1/models/{response.json()['data'][0]['root']}/predictions"

    async def predict(self, inputs: Mapping[str, Any]) -> Outcome:
        """Have one prediction answered.

        Raises:
            LineError: it is refused or fails, or its answer is not kept.
            GatewayUnusableError: no prediction can be made.
        """
        prediction = await self._create(inputs)
        while prediction["status"] in ("starting", "processing"):
            await asyncio.sleep(_POLL_SECONDS)
            prediction = _content(await self._send("GET", f"/v1/predictions/{prediction['id']}"))
            if "status" not in prediction:
                raise LineError("the prediction was deleted while it ran")
        if prediction["status"] != "succeeded":
            raise LineError(str(prediction.get("error") or prediction["status"]))
        match prediction["metrics"].get("cached"):
            case True:
                return Outcome.CACHED
            case False:
                return Outcome.NEW
        raise LineError(_NOT_KEPT)

    async def _create(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        refusals = 0
        while True:
            response = await self._send("POST", self._path, json={"input": inputs}, headers=self._headers)
            match response.status_code:
                case httpx.codes.CREATED:
                    return _content(response)
                case httpx.codes.TOO_MANY_REQUESTS:
                    pass
                case httpx.codes.SERVICE_UNAVAILABLE if refusals < _MAX_REFUSALS:
                    refusals += 1
                case httpx.codes.UNAUTHORIZED:
                    raise GatewayUnusableError(_reason(response))
                case _:
                    raise LineError(_reason(response))
            await asyncio.sleep(float(response.headers.get("retry-after", 1)))

    async def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return await self._client.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            trouble = f"{type(error).__name__} {error}".rstrip()
            text = f"the gateway at {self._client.base_url} cannot be reached: {trouble}"
            raise GatewayUnusableError(text) from error


def _content(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise GatewayUnusableError(f"{response.url} does not answer as a gateway does")
    return content


def _reason(response: httpx.Response) -> str:
    """The text of an error, in the shape of either API."""
    content = _content(response)
    error = content.get("error")
    text = error.get("message") if isinstance(error, dict) else content.get("detail")
    return " ".join(str(text or f"answered {response.status_code}").split())
