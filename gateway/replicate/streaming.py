"""A prediction as a stream of server-sent events, as Replicate's clients read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from gateway.event_stream import encode_event
from gateway.predictions import Prediction, Status
from gateway.runs import Finished, LogText, OutputPiece, Position, Run, RunEvent, events_between, pieces_of

QUIET_SECONDS: Final = 15.0  # then a comment is sent, so that nothing between takes the connection for dead
_REASONS: Final = {Status.CANCELED: {"reason": "canceled"}, Status.FAILED: {"reason": "error"}}


async def stream_run(run: Run, position: Position) -> AsyncIterator[bytes]:
    """The events of a prediction that runs, from a position to the end."""
    loop, start = asyncio.get_running_loop(), _unix(run.snapshot())
    quiet_at = loop.time() + QUIET_SECONDS
    while True:
        if events := run.events_after(position):
            position = events[-1].position
            yield b"".join(_encode(event, start) for event in events)
            if isinstance(events[-1], Finished):
                return
        else:
            try:
                async with asyncio.timeout_at(quiet_at):
                    await run.changed()
                continue
            except TimeoutError:
                yield b": waiting\n\n"
        quiet_at = loop.time() + QUIET_SECONDS


async def stream_kept(prediction: Prediction, position: Position) -> AsyncIterator[bytes]:
    """The events of a prediction that has ended."""
    start = _unix(prediction)
    for event in events_between(position, pieces_of(prediction.output), prediction.logs[position.logs :]):
        position = event.position
        yield _encode(event, start)
    yield _encode(Finished(prediction, position), start)


def _encode(event: RunEvent, start: int) -> bytes:
    event_id = f"{start}:{event.position.output}-{event.position.logs}"
    match event:
        case OutputPiece(value=value):
            return encode_event("output", value if isinstance(value, str) else json.dumps(value), event_id)
        case LogText(text=text):
            return encode_event("logs", text, event_id)
        case Finished(prediction=prediction):
            done = encode_event("done", json.dumps(_REASONS.get(prediction.status, {})), event_id)
            if prediction.status is Status.FAILED:
                return encode_event("error", json.dumps({"detail": prediction.error}), event_id) + done
            return done


def _unix(prediction: Prediction) -> int:
    return int(datetime.fromisoformat(prediction.created_at).timestamp())
