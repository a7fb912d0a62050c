"""Connects to a Ray cluster, which may be this machine alone, places engines there, and has them answer rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.batch.engine_room import Room, find_room
from pipeline.batch.errors import BatchError
from pipeline.batch.local_worker import EngineActor
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.paths import ENVIRONMENT
from pipeline.weights.console import say
from serving.config import Settings
from serving.errors import EngineDeadError, ServingError

_CLOSE_SECONDS: Final = 10.0
_OBJECT_STORE: Final = 100 << 20  # bytes of Ray's shared memory; no row goes through it
_STARTS: Final = 5
# A busy machine is no dead machine; and no workers are started for tasks, which there are none of.
_SYSTEM: Final = {
    "health_check_timeout_ms": 60_000,
    "worker_register_timeout_seconds": 300,
    "prestart_worker_first_driver": False,
}


class RayWorker:
    """See `pipeline.batch.rows.Worker`.

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


def connect(address: str | None, environment: Mapping[str, str] = ENVIRONMENT) -> None:
    """Connect to a cluster, or start Ray on this machine for the time of this process.

    Args:
        address: HOST:PORT of a cluster's head, or `auto` for the cluster that this machine is in; None starts Ray.
        environment: environment variables of the actors that this process starts.

    Raises:
        BatchError: there is no cluster.
    """
    options: dict[str, Any] = {"logging_level": "warning", "runtime_env": {"env_vars": {**environment}}}
    if address is None:
        _start(options)
        return
    if "://" in address:
        raise BatchError(f"--address {address}: give HOST:PORT, on a machine of the cluster, or auto")
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError) as error:
        raise BatchError(f"--address {address}: {error}") from error


def _start(options: Mapping[str, Any]) -> None:
    """Start Ray on this machine; Ray gives its own processes 15 s, and on a busy machine they may need more."""
    for left in reversed(range(_STARTS)):
        try:
            ray.init("local", object_store_memory=_OBJECT_STORE, _system_config=_SYSTEM, **options)
            return
        except Exception as error:  # Ray has no type for it; what it has started ends with this process
            ray.shutdown()
            if not left:
                raise BatchError(f"Ray does not start: {error}") from error
            say("Ray did not start in time; it is started again")


def find_places(engines: int | None, settings: Settings, option: str) -> tuple[Room, dict[str, str]]:
    """What each engine gets of the cluster that this process is connected to, and its environment variables.

    The arguments are those of `find_room`.

    Raises:
        BatchError: there is no room for them.
    """
    room = find_room([node["Resources"] for node in ray.nodes() if node["Alive"]], engines, settings, option)
    environment = {name: value for name, value in os.environ.items() if name.lower() in Settings.model_fields}
    if room.threads is not None and settings.num_threads is None:
        environment["NUM_THREADS"] = str(room.threads)
    return room, environment


def ray_workers(engines: int | None, settings: Settings, lock: str, inputs: RowInputs) -> list[RayWorker]:
    """Engines on the cluster that this process is connected to; their actors are not there yet.

    Args:
        engines: how many; None for one on each GPU, or one on each machine if there are no GPUs.
        lock: SHA-256 of this machine's lock of weights.

    Raises:
        BatchError: there is no room for them.
    """
    room, environment = find_places(engines, settings, "--engines")
    actor = ray.remote(EngineActor).options(
        num_cpus=room.cpus,
        num_gpus=room.gpus,
        max_restarts=0,  # `RayWorker` makes a new one, which must be told what to start
        max_concurrency=settings.max_num_seqs + 8,
        scheduling_strategy="SPREAD",
    )
    return [RayWorker(lambda: actor.remote(environment, lock, inputs)) for _ in range(room.engines)]
