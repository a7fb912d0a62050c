"""Chooses where the engines of a run are; only a run on Ray imports Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.batch.engine_worker import Worker
from pipeline.batch.local_worker import LocalWorker, start_model
from pipeline.batch.row_inputs import RowInputs
from serving.config import Settings


@dataclass(frozen=True, slots=True)
class RayPlace:
    """A Ray cluster.

    Args:
        address: of the cluster; None starts Ray on this machine.
        engines: number of engines; None for as many as fit.
    """

    address: str | None
    engines: int | None


def make_workers(place: RayPlace | None, settings: Settings, lock: str, inputs: RowInputs) -> Sequence[Worker]:
    """One worker for each engine, not started.

    Args:
        place: where they run; None for one in this process.
        settings: of the engines.
        lock: SHA-256 of the lock of weights.
        inputs: which input comes from which column.

    Raises:
        BatchError: the cluster cannot be reached, or has no room.
    """
    if place is None:
        return [LocalWorker(start_model, inputs)]
    from pipeline.batch.ray_cluster import connect, ray_workers

    connect(place.address)
    return ray_workers(place.engines, settings, lock, inputs)
