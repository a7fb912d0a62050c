"""Draws passes beside the two limits of the machine: the copy rate and the matmul rate (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.gpu_check.finding import Point
from pipeline.gpu_check.machine_rates import Rates


def draw_roofline(path: Path, points: Sequence[Point], rates: Rates, caption: str) -> None:
    """Write a picture: operations a second against operations a byte, of each pass."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    ridge = rates.flops / rates.bytes_per_second
    low = min([point.flop / point.num_bytes for point in points] + [ridge]) / 2
    high = max([point.flop / point.num_bytes for point in points] + [ridge]) * 4
    intensity = np.geomspace(low, high, 200)
    roof = np.minimum(rates.flops, rates.bytes_per_second * intensity) / 1e12
    label = f"measured: {rates.bytes_per_second / 1e9:,.0f} GB/s copied, {rates.flops / 1e12:,.3g} TFLOP/s"
    axes.plot(intensity, roof, color="gray", label=label)
    for name in dict.fromkeys(point.label for point in points):
        mine = [point for point in points if point.label == name]
        axes.plot(
            [point.flop / point.num_bytes for point in mine],
            [point.flop / point.seconds / 1e12 for point in mine],
            "o-",
            label=name,
        )
    axes.set(
        title="Passes of the model and the machine's limits",
        xlabel="floating-point operations per byte of weights and KV cache",
        ylabel="TFLOP/s",
        xscale="log",
        yscale="log",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.supxlabel(caption, fontsize=7, color="gray")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
