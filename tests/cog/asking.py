"""Asks a Cog server for predictions, whole and streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from lab.endurance.cog_process import CogServer, ServerFailedError


def post(server: CogServer, **inputs: Any) -> httpx.Response:
    """The answer to a prediction that is not streamed."""
    return server.client.post("/predictions", json={"input": inputs})


@contextmanager
def stream(server: CogServer, prediction_id: str, **inputs: Any) -> Iterator[Iterator[tuple[str, Any, float]]]:
    """Server-sent events of a prediction: name, data, and time of arrival.

    Retries when the server says that it is full: with 8 simultaneous requests on an overloaded machine, coglet
    0.23.1 has refused the last although 24 of its 32 slots were free (docs/log.md).
    """
    with ExitStack() as stack:
        for _ in range(5):
            body = {"id": prediction_id, "input": inputs}
            opened = server.client.stream(
                "PUT", f"/predictions/{prediction_id}", json=body, headers={"Accept": "text/event-stream"}
            )
            response = stack.enter_context(opened)
            if response.status_code != 409:
                break
            time.sleep(0.1)
        if response.status_code != 200:
            raise ServerFailedError(f"{prediction_id}: {response.status_code} {response.read()[:500]!r}")
        yield _events(response)


def _events(response: httpx.Response) -> Iterator[tuple[str, Any, float]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            yield name, json.loads(line.removeprefix("data:")), time.monotonic()
