"""A prediction from its start to its end: a server's events make it grow, and any number of readers follow it."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from gateway.errors import InvalidInputError
from gateway.predictions.prediction import Prediction, Status, now, seconds_between
from gateway.upstream.model_server import UpstreamEvent

_CAUGHT: Final = re.compile(r"^Prediction failed: (?:Generator iteration error: )?(?:[\w.]*(?:Error|Exception): )?")
_BATCH: Final = 256  # events that a reader gets at once


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a prediction a reader has seen: pieces of output and characters of logs."""

    output: int = 0
    logs: int = 0


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """An event with one piece of the output, and the position behind that piece."""

    value: JsonValue
    position: Position


@dataclass(frozen=True, slots=True)
class LogText:
    """An event with new text of the logs, and the position behind that text."""

    text: str
    position: Position


@dataclass(frozen=True, slots=True)
class Finished:
    """The event of the end, which is always the last one."""

    prediction: Prediction
    position: Position


PredictionEvent = OutputPiece | LogText | Finished
_START: Final = Position()


class OutputTooLargeError(Exception):
    """A prediction has more output and logs than the gateway allows."""


class LivePrediction:
    """One prediction while it runs. Output and logs only grow, so a reader needs nothing but its position.

    `snapshot()` is the same prediction as a `Prediction`, which does not change.

    Args:
        prediction: the prediction as it was created.
        max_bytes: the limit of output and logs together.
    """

    def __init__(self, prediction: Prediction, *, max_bytes: int) -> None:
        self._prediction = prediction
        self._pieces: list[JsonValue] = []
        self._logs = io.StringIO()  # appends without copying what is there
        self._metrics: dict[str, JsonValue] = {}
        self.num_bytes = 0  # of output and logs
        self._max_bytes = max_bytes
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()  # who waits for the end is not woken by each piece
        self.is_seen = False  # a reader has some of its output or logs, so that it cannot begin again unnoticed
        self.is_dirty = False  # has changed since it was last saved
        self.on_piece: list[Callable[[], None]] = []  # called for each new piece of output
        self.trace = PredictionTrace()
        # Done once a server has accepted the inputs, or it is known that the prediction waits for one.
        self._settled: asyncio.Future[InvalidInputError | None] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> str:
        """The prediction's id."""
        return self._prediction.id

    @property
    def owner(self) -> str | None:
        """The name of the API key that made the prediction; None where the gateway asks for no keys."""
        return self._prediction.owner

    @property
    def is_finished(self) -> bool:
        """Whether the prediction can no longer change."""
        return self._prediction.status.is_final

    def shown(self) -> Prediction:
        """The prediction as it is now, for a reader."""
        self.is_seen = self.is_seen or bool(self._pieces) or self._logs.tell() > 0
        return self.snapshot()

    def snapshot(self) -> Prediction:
        """The prediction as it is now, for what no reader sees; `shown` is for readers."""
        if self.is_finished:
            return self._prediction
        output: JsonValue = list(self._pieces) if self._pieces else None
        return replace(self._prediction, output=output, logs=self._logs.getvalue(), metrics=dict(self._metrics))

    async def changed(self) -> None:
        """Wait until the prediction changes."""
        await self._changed.wait()

    async def finished(self) -> Prediction:
        """The prediction once it can no longer change."""
        await self._ended.wait()
        return self._prediction

    async def answered(self) -> Prediction:
        """The prediction as in `finished`, but requests that wait for it are woken first; for logs and metrics."""
        await self._ended.wait()
        await asyncio.sleep(0)
        return self._prediction

    async def follow(self, position: Position = _START) -> AsyncIterator[PredictionEvent]:
        """The events after a position, as they come, until `Finished`. A slow reader holds nobody up."""
        while True:
            if not (events := self.events_after(position)):
                await self.changed()
            for event in events:
                position = event.position
                yield event
                if isinstance(event, Finished):
                    return

    def events_after(self, position: Position) -> list[PredictionEvent]:
        """The events after a position that are there already; where they are many, the first of them."""
        pieces = self._output()
        events: list[PredictionEvent] = [
            *events_between(position, pieces, self._logs_after(position.logs), most=_BATCH)
        ]
        self.is_seen = self.is_seen or bool(events)
        end = events[-1].position if events else position
        if self.is_finished and end.output >= len(pieces):
            events.append(Finished(self._prediction, end))
        return events

    def _logs_after(self, start: int) -> str:
        if start >= self._logs.tell():  # as for nearly every piece of output
            return ""
        self._logs.seek(start)
        text = self._logs.read()
        self._logs.seek(0, io.SEEK_END)
        return text

    def _output(self) -> list[JsonValue]:
        """The pieces of output so far; of a model that does not stream, the whole output once it is there."""
        return self._pieces if self._pieces or not self.is_finished else pieces_of(self._prediction.output)

    def settle(self, refusal: InvalidInputError | None = None) -> None:
        """Note that a server has accepted or refused the inputs, or that this will take time."""
        if not self._settled.done():
            self._settled.set_result(refusal)

    async def settled(self) -> InvalidInputError | None:
        """Wait for `settle`; returns the refusal of the inputs, if they were refused at once."""
        return await asyncio.shield(self._settled)

    def begin(self) -> None:
        """Note that a server has started the prediction, perhaps not for the first time."""
        self.settle()
        self._metrics = {}
        self._prediction = replace(self._prediction, status=Status.PROCESSING, started_at=now())
        self._notify()

    def forget_output(self) -> None:
        """Drop the output of a server that has ended, of which no reader has seen any: another server begins anew."""
        assert not self.is_seen
        self._pieces, self._logs, self.num_bytes = [], io.StringIO(), 0

    def apply(self, event: UpstreamEvent) -> None:
        """Take an event of the server's stream, other than `completed`.

        Raises:
            OutputTooLargeError: output and logs would be over the limit.
        """
        if event.name == "output":
            piece = event.data.get("chunk")
            self._count(len(piece) if isinstance(piece, str) else len(json.dumps(piece)))
            self._pieces.append(piece)
            for call in self.on_piece:
                call()
        elif event.name == "log":
            text = str(event.data.get("data", ""))
            self._count(len(text))
            self._logs.write(text)
        elif event.name == "metric":
            self._metrics[str(event.data.get("name"))] = event.data.get("value")
        else:
            return
        self._notify()

    def completed(self, content: Mapping[str, JsonValue]) -> Prediction:
        """The final prediction, by the server's last event."""
        status = Status(str(content.get("status")))
        error, logs, metrics = content.get("error"), content.get("logs"), content.get("metrics")
        output = content.get("output")
        return self.ended(
            status,
            error=_sentence(str(error)) if error is not None and status is Status.FAILED else None,
            output=list(self._pieces) if self._pieces else output,
            logs=logs if isinstance(logs, str) and logs.startswith(self._logs.getvalue()) else None,
            metrics=metrics if isinstance(metrics, dict) else self._metrics,
        )

    def ended(
        self,
        status: Status,
        *,
        error: str | None = None,
        output: JsonValue = None,
        logs: str | None = None,
        metrics: dict[str, JsonValue] | None = None,
    ) -> Prediction:
        """The final prediction if it ends now; what is not given stays as it is."""
        so_far, time = self.snapshot(), now()
        total = seconds_between(so_far.created_at, time)
        return replace(
            so_far,
            status=status,
            error=error,
            output=so_far.output if output is None else output,
            logs=so_far.logs if logs is None else logs,
            metrics={**(so_far.metrics if metrics is None else metrics), "total_time": total},
            completed_at=time,
        )

    def finish(self, final: Prediction) -> None:
        """Show the final state to all readers."""
        self._prediction = final
        self.trace.end(final)
        self._logs.write(final.logs[self._logs.tell() :])
        self.settle()
        self._ended.set()
        self._notify()

    def _count(self, num_more: int) -> None:
        self.num_bytes += num_more
        if self.num_bytes > self._max_bytes:
            raise OutputTooLargeError(f"output and logs are over the gateway's limit of {self._max_bytes:,} bytes")

    def _notify(self) -> None:
        self.is_dirty = True
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _sentence(error: str) -> str:
    """The text of the error that predict() raised, without what Cog puts before it: where it was caught, its class."""
    return _CAUGHT.sub("", error) or error


def events_between(
    position: Position, pieces: list[JsonValue], new_logs: str, most: int = sys.maxsize
) -> list[OutputPiece | LogText]:
    """The events that lead a reader from its position to these pieces and logs.

    Args:
        position: what the reader has seen.
        pieces: all pieces of the output, from the first one on.
        new_logs: the text of the logs after the position.
        most: the largest number of pieces that get events.
    """
    events: list[OutputPiece | LogText] = []
    num_logs = position.logs + len(new_logs)
    if new_logs:
        events.append(LogText(new_logs, Position(position.output, num_logs)))
    for number in range(position.output, min(len(pieces), position.output + most)):
        events.append(OutputPiece(pieces[number], Position(number + 1, num_logs)))
    return events


def pieces_of(output: JsonValue) -> list[JsonValue]:
    """The pieces of a whole output: its items, or itself if it is no list."""
    if output is None:
        return []
    return list(output) if isinstance(output, list) else [output]


class PredictionTrace:
    """What a prediction tells the gateway's tracing. This one records nothing; `gateway/tracing` has one that does."""

    trace_id: str | None = None

    def asking(self, address: str) -> AbstractContextManager[Mapping[str, str]]:
        """A context for the time while a server is asked; it gives W3C's `traceparent` to send there, or nothing."""
        return nullcontext({})

    def end(self, prediction: Prediction) -> None:
        """Note that the prediction has ended."""
