"""Split a request's time into its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from lab.bench.measure import Run
from lab.bench.summary import good, of
from lab.bench.workloads import Workload

MODEL = ("prefill", "decode", "head")  # parts of a step that the model takes
OUTSIDE = "outside steps"  # waiting, compiling the grammar, detokenizing


def where_time_goes(runs: Sequence[Run], engine: str, workload: str = Workload.ONE_NEW) -> dict[str, float]:
    """Mean milliseconds of each part for requests asked one at a time, of an engine that measures its steps."""
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
    """The fraction of the steps' time that is not spent in the model."""
    steps = sum(ms for name, ms in split.items() if name != OUTSIDE)
    return 1 - sum(split[name] for name in MODEL) / steps if set(MODEL) <= set(split) else None
