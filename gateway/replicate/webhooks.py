"""Tells callers about their predictions: signed POSTs of the prediction object, the last one with retries."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gateway.gateway import Gateway
from gateway.http.webhook_client import WebhookClient, WebhookError
from gateway.predictions.live_prediction import Finished, LivePrediction, LogText, OutputPiece
from gateway.predictions.prediction import Prediction, Status, new_id
from gateway.predictions.store import Store
from gateway.replicate.objects import prediction_object

_log = logging.getLogger(__name__)
QUIET_SECONDS: Final = 0.5  # between two POSTs about output or logs
RETRY_SECONDS: Final = (0.5, 1, 2, 4, 8, 16)  # before each further attempt for `completed`
CLOSE_SECONDS: Final = 10.0  # for what must still be sent when the gateway stops
_SECRET_BYTES: Final = 24


@asynccontextmanager
async def open_webhooks(gateway: Gateway) -> AsyncIterator[None]:
    """Send webhooks while the gateway is open, first those of predictions that were interrupted."""
    secret = await webhook_secret(gateway.store)
    sender = Sender(gateway.webhooks, secret, gateway.settings.base_url)
    tasks: set[asyncio.Task[bool]] = set()

    def keep(task: asyncio.Task[bool]) -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def tell(live: LivePrediction) -> None:
        if live.snapshot().webhook is not None:
            keep(asyncio.create_task(sender.follow(live)))

    gateway.runner.on_start.append(tell)
    for prediction in gateway.interrupted:
        keep(asyncio.create_task(sender.send("completed", prediction)))
    try:
        yield
    finally:
        if tasks:
            _, unsent = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            if unsent:
                _log.warning("the gateway stops; webhooks of %d predictions were not delivered", len(unsent))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def webhook_secret(store: Store) -> str:
    """The key with which the gateway signs, which is made once."""
    new = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    return await store.secret("webhook", f"whsec_{new}")


def secret_of(secret: str, owner: str | None) -> str:
    """The key of one caller, who could otherwise sign for others; where callers have no API keys, the gateway's own."""
    if owner is None:
        return secret
    derived = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), owner.encode(), hashlib.sha256).digest()
    return f"whsec_{base64.b64encode(derived[:_SECRET_BYTES]).decode()}"


def signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """The header `webhook-signature`: HMAC-SHA256 of id, time and body, as in the Standard Webhooks specification."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Sender:
    """Sends the events of predictions, signed with the gateway's key, which is `whsec_` and base64."""

    def __init__(self, client: WebhookClient, secret: str, base_url: str) -> None:
        self._client = client
        self._secret = secret
        self._base_url = base_url

    async def follow(self, live: LivePrediction) -> bool:
        """Send the events of a prediction from its start to its end; returns False if its inputs were refused."""
        if await live.settled() is not None:
            return False  # its inputs were refused
        while live.snapshot().status is Status.STARTING:
            await live.changed()
        await self.send("start", live.snapshot())
        wanted = live.snapshot().webhook
        if wanted is None or not {"output", "logs"} & set(wanted.events):
            await self.send("completed", await live.finished())
            return True
        last_sent = 0.0
        async for event in live.follow():
            match event:
                case Finished(prediction=prediction):
                    await self.send("completed", prediction)
                case OutputPiece() | LogText() if time.monotonic() - last_sent >= QUIET_SECONDS:
                    sent = await self.send("output" if isinstance(event, OutputPiece) else "logs", live.snapshot())
                    last_sent = time.monotonic() if sent else last_sent
        return True

    async def send(self, event: str, prediction: Prediction) -> bool:
        """Send one event if the caller wants it. Only `completed` is sent again after a failure.

        Returns:
            Whether it was wanted.
        """
        webhook = prediction.webhook
        if webhook is None or event not in webhook.events:
            return False
        if event in ("output", "logs") and prediction.status.is_final:
            return False  # `completed` follows at once and has it all
        body = json.dumps(prediction_object(prediction, self._base_url)).encode()
        message_id = f"msg_{new_id()}"
        secret = secret_of(self._secret, prediction.owner)
        trouble = await self._post(webhook.url, secret, message_id, body)
        for seconds in RETRY_SECONDS if event == "completed" else ():
            if trouble is None:
                break
            await asyncio.sleep(seconds)
            trouble = await self._post(webhook.url, secret, message_id, body)
        if trouble is not None:
            _log.warning("webhook of prediction %s, event %s: %s", prediction.id, event, trouble)
        return True

    async def _post(self, url: str, secret: str, message_id: str, body: bytes) -> str | None:
        """Send a body once; returns what went wrong, or None."""
        timestamp = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(secret, message_id, timestamp, body),
        }
        try:
            status = await self._client.post(url, body, headers)
        except WebhookError as error:
            return str(error)
        return None if status < 300 else f"answered {status}"
