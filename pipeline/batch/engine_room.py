"""Decides how many engines a cluster gets, and what each of them may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.batch.errors import BatchError
from serving.config import Settings
from serving.engine import ENGINES


@dataclass(frozen=True, slots=True)
class Room:
    """What each engine gets.

    Args:
        cpus: number of CPUs of each engine; a fraction if there are more engines than CPUs.
        threads: number of threads of each engine, if several share a machine and compute on its CPU.
    """

    engines: int
    cpus: float
    gpus: int
    threads: int | None


def find_room(machines: Sequence[Mapping[str, float]], engines: int | None, settings: Settings, option: str) -> Room:
    """How many engines there will be, and what each of them gets.

    Args:
        machines: resources of each by Ray's names.
        engines: how many were asked for; None for as many as fit.
        option: the option of the command that says how many.

    Raises:
        BatchError: there is no room for them.
    """
    entry = ENGINES.get(settings.engine)
    computes_here = settings.engine == "auto" or (entry is not None and entry.computes_here)
    wants_gpus = settings.device != "cpu" and computes_here
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines) if wants_gpus else 0
    each = settings.tensor_parallel_size if isinstance(settings.tensor_parallel_size, int) else 1
    having = [machine for machine in machines if machine.get("GPU" if gpus else "CPU", 0) >= 1]
    if not having:
        raise BatchError("no machine of the cluster has a CPU for Ray; add one with `ray start`")
    fitting = sum(int(machine.get("GPU", 0)) // each for machine in having)
    if gpus and (engines or 1) > fitting:
        wanted = "one engine" if engines is None else f"{option} {engines}"
        raise BatchError(
            f"the cluster's {gpus} GPUs are too few for {wanted}, with {each} each; there is room for {fitting}"
        )
    wanted_engines = engines or (fitting if gpus else len(having))
    on_one = -(-wanted_engines // len(having))
    cpus = min(machine.get("CPU", 0.0) for machine in having) / on_one
    threads = max(1, int(cpus)) if on_one > 1 and not gpus and computes_here else None
    return Room(wanted_engines, float(int(cpus)) if cpus >= 1 else cpus, each if gpus else 0, threads)
