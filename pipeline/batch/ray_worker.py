"""Answers rows with an engine in a Ray actor, and makes a new actor where one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.batch.errors import BatchError
from pipeline.batch.rows import Row, RowAnswer
from serving.errors import EngineDeadError, ServingError

_CLOSE_SECONDS: Final = 10.0


class RayWorker:
    """See `pipeline.batch.engine_worker.Worker`.

    Args:
        create: creates an actor of the class `EngineActor`; the actor waits until the cluster has room for it.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._actor: Any = None
        self._is_started = False

    async def start(self) -> None:
        """See `Worker.start`. Waits until the cluster has room."""
        await asyncio.to_thread(self.close)
        self._actor = self._create()
        try:
            await _result(self._actor.start.remote())
            self._is_started = True
        except (ServingError, BatchError):
            raise
        except Exception as error:  # whatever is wrong with one machine must not stop the others
            raise BatchError(f"the engine does not start: {error!r}") from error

    async def prepare(self, rows: list[Row]) -> list[Row]:
        """See `Worker.prepare`."""
        by_number = {row.number: row for row in rows}
        return [by_number[number] for number in await _result(self._actor.prepare.remote(rows))]

    async def answer(self, number: int) -> RowAnswer:
        """See `Worker.answer`."""
        answer: RowAnswer = await _result(self._actor.answer.remote(number))
        return answer

    def close(self) -> None:
        """See `Worker.close`."""
        if self._actor is None:
            return
        with suppress(RayError):  # it is dead, or does not answer
            if self._is_started:
                ray.get(self._actor.close.remote(), timeout=_CLOSE_SECONDS)
        ray.kill(self._actor)
        self._actor, self._is_started = None, False


async def _result(call: Awaitable[Any]) -> Any:
    """The result of a call of an actor.

    Raises:
        EngineDeadError: the actor died.
    """
    try:
        return await call
    except RayActorError as error:
        raise EngineDeadError(f"the engine's process ended: {_first_line(error)}") from error
    except RayTaskError as error:
        raise error.cause from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
