"""Connects to a Ray cluster, which may be this machine alone, and places engines there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import ray

from pipeline.batch.engine_actor import EngineActor
from pipeline.batch.engine_room import find_room
from pipeline.batch.errors import BatchError
from pipeline.batch.ray_worker import RayWorker
from pipeline.batch.row_inputs import RowInputs
from pipeline.paths import ENVIRONMENT
from pipeline.weights.console import say
from serving.config import Settings

_OBJECT_STORE: Final = 100 << 20  # bytes of Ray's shared memory; no row goes through it
_STARTS: Final = 5
# A busy machine is no dead machine; and no workers are started for tasks, which there are none of.
_SYSTEM: Final = {
    "health_check_timeout_ms": 60_000,
    "worker_register_timeout_seconds": 300,
    "prestart_worker_first_driver": False,
}


def connect(address: str | None) -> None:
    """Connect to a cluster, or start Ray on this machine for the time of this process.

    Args:
        address: HOST:PORT of a cluster's head, or `auto` for the cluster that this machine is in; None starts Ray.

    Raises:
        BatchError: there is no cluster.
    """
    options: dict[str, Any] = {"logging_level": "warning", "runtime_env": {"env_vars": ENVIRONMENT}}
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


def ray_workers(engines: int | None, settings: Settings, lock: str, inputs: RowInputs) -> list[RayWorker]:
    """Engines on the cluster that this process is connected to; their actors are not there yet.

    Args:
        engines: how many; None for one on each GPU, or one on each machine if there are no GPUs.
        settings: of the engines.
        lock: SHA-256 of this machine's lock of weights.
        inputs: which input comes from which column.

    Raises:
        BatchError: there is no room for them.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = find_room(machines, engines, settings)
    environment = {name: value for name, value in os.environ.items() if name.lower() in Settings.model_fields}
    if room.threads is not None and settings.num_threads is None:
        environment["NUM_THREADS"] = str(room.threads)
    actor = ray.remote(EngineActor).options(
        num_cpus=room.cpus,
        num_gpus=room.gpus,
        max_restarts=0,  # `RayWorker` makes a new one, which must be told what to start
        max_concurrency=settings.max_num_seqs + 8,
        scheduling_strategy="SPREAD",
    )
    return [RayWorker(lambda: actor.remote(environment, lock, inputs)) for _ in range(room.engines)]
