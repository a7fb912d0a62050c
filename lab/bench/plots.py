"""Plots the latencies of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from lab.bench.figures import Run, good
from lab.bench.result import read_runs
from lab.bench.workloads import Workload

AT_ONCE = (Workload.ONE_NEW, Workload.LOAD_8, Workload.LOAD_32, Workload.USERS)


def draw_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write a PNG for each kind of measurement; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = read_runs(result)
    at_once = _by_engine([run for run in runs if run.workload in AT_ONCE], lambda run: float(run.concurrency))
    arrivals = _by_engine([run for run in runs if run.workload == Workload.OPEN], lambda run: run.variant or 0.0)
    drawn = []
    for name, title, xlabel, lines in (
        ("latency", "Latency against concurrency", "requests at once", at_once),
        ("open_loop", "Latency against arrivals (Poisson)", "requests a second", arrivals),
    ):
        if lines:
            figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
            _draw_lines(axes, lines)
            axes.set(title=title, xlabel=xlabel, xscale="log")
            figure.supxlabel(_caption(result), fontsize=7, color="gray")
            drawn.append(folder / f"bench_{name}.png")
            figure.savefig(drawn[-1], dpi=120)
            plt.close(figure)
    return drawn


def _by_engine(runs: Sequence[Run], place: Callable[[Run], float]) -> dict[str, dict[float, list[float]]]:
    """Engine → position on the axis → milliseconds of every request."""
    lines: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        milliseconds = [1000 * reply.e2e for reply in good([run])]
        if milliseconds:
            lines.setdefault(run.engine, {}).setdefault(place(run), []).extend(milliseconds)
    return lines


def _draw_lines(axes: Axes, lines: Mapping[str, Mapping[float, Sequence[float]]]) -> None:
    """Plot p50 and p95 of every engine."""
    for name, points in lines.items():
        places = sorted(points)
        (line,) = axes.plot(places, [median(points[p]) for p in places], "o-", label=name)
        slow = [float(np.percentile(points[p], 95)) for p in places]
        axes.plot(places, slow, "--", color=line.get_color(), linewidth=0.8)
    axes.set(ylabel="ms end to end; p50, dashed p95", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _caption(result: Mapping[str, Any]) -> str:
    machine, commit = result["machine"], result["commit"] or "unknown"
    return f"{machine['cpu']}, {machine['cores']} cores · {result['date']} · commit {commit[:10]}"
