"""Where a request's time goes.

Owns: the split, from what our engine's steps report of themselves and what is seen from outside. Knows
nothing of drawing.

    where_time_goes(runs, "paged")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from scripts.benchmark.measure import Run
from scripts.benchmark.summary import good, of
from scripts.benchmark.workloads import Workload

MODEL = ("prefill", "decode", "head")  # parts of a step that the model takes
OUTSIDE = "outside steps"  # waiting, compiling the grammar, text


def where_time_goes(runs: Sequence[Run], engine: str, workload: str = Workload.ONE_NEW) -> dict[str, float]:
    """Mean milliseconds a request that is alone; those of an engine that times its steps by their parts."""
    chosen = of(runs, workload, engine)
    replies = [reply for reply in good(chosen) if reply.ttft is not None]
    if not replies:
        return {}
    until_first = 1000 * fmean(reply.ttft or 0.0 for reply in replies)
    whole = 1000 * fmean(reply.e2e for reply in replies)
    if not all(run.steps for run in chosen):
        return {"until the first token": until_first, "after it": whole - until_first}
    names = dict.fromkeys(name for run in chosen for name in run.steps)
    count = sum(len(run.replies) for run in chosen)
    parts = {name: 1000 * sum(run.steps.get(name, 0.0) for run in chosen) / count for name in names}
    return {**parts, OUTSIDE: whole - sum(parts.values())}


def overhead_share(split: Mapping[str, float]) -> float | None:
    """What steps spend on everything but the model, over what they take."""
    steps = sum(ms for name, ms in split.items() if name != OUTSIDE)
    return 1 - sum(split[name] for name in MODEL) / steps if set(MODEL) <= set(split) else None
