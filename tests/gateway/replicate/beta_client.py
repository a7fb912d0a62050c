"""Asks the gateway with Replicate's client 2, in that client's own environment: python beta_client.py MODEL QUESTION.

The question has an answer that takes seconds. Prints a JSON object of what each call gave.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import replicate
from replicate import AsyncReplicate, Replicate

MODEL, SLOW = sys.argv[1:]
OWNER, NAME = MODEL.split("/")
SHORT = {"nlq": "how many?", "cols": "a,b"}
LONG = {"nlq": SLOW, "cols": "a,b"}


def streamed() -> list[object]:
    """The pieces, and what the prediction was when the first one was there."""
    inputs = {**LONG, "cols": "streamed"}
    pieces = iter(replicate.use(MODEL, streaming=True)(**inputs))
    first = next(pieces)
    [status] = [one.status for one in replicate.predictions.list().results if one.input == inputs]
    return [[first, *pieces], status]


async def asynchronous() -> list[object]:
    used = replicate.use(MODEL, use_async=True)
    async with AsyncReplicate() as client:
        return list(await asyncio.gather(client.run(MODEL, input=SHORT), used(**SHORT)))


def cancelled() -> list[str]:
    prediction = replicate.models.predictions.create(model_owner=OWNER, model_name=NAME, input=LONG)
    found = [prediction.status]
    while not prediction.output:
        time.sleep(0.02)
        prediction = replicate.predictions.get(prediction_id=prediction.id)
    found += [prediction.status, replicate.predictions.cancel(prediction_id=prediction.id).status]
    return [*found, replicate.predictions.get(prediction_id=prediction.id).status]


def error_of(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


version = replicate.models.get(model_owner=OWNER, model_name=NAME).latest_version
CALLS: dict[str, Callable[[], object]] = {
    "run": lambda: replicate.run(f"{MODEL}:{version.id}", input=SHORT),
    "run_longer_than_its_wait": lambda: replicate.run(MODEL, input=LONG, wait=1),
    "streamed": streamed,
    "asynchronous": lambda: asyncio.run(asynchronous()),
    "cancelled": cancelled,
    "wrong_input": lambda: error_of(lambda: replicate.run(MODEL, input={"nlq": 5, "cols": "a"})),
    "model_error": lambda: error_of(lambda: replicate.run(MODEL, input={"nlq": " ", "cols": "a"})),
    "wrong_key": lambda: error_of(lambda: Replicate(bearer_token="wrong").run(MODEL, input=SHORT)),
    "wrong_model": lambda: error_of(lambda: replicate.run("local/other", input=SHORT)),
}
with ThreadPoolExecutor(len(CALLS)) as pool:  # together, because some take seconds
    running = {name: pool.submit(call) for name, call in CALLS.items()}
print(json.dumps({name: future.result() for name, future in running.items()}))
