"""Plots what README says of the speed, from a committed result of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from pipeline.paths import ROOT

RESULT: Final = ROOT / "docs" / "results" / "bench-large-avx512vnni.json"
_ENGINES: Final = {"paged": "paged (ours)", "vllm-suffix": "vLLM", "llama": "llama.cpp"}
_OURS, _OTHERS = "#2f5bd8", "#9aa4b5"


def draw_speed(path: Path, result_file: Path = RESULT) -> None:
    """Write the plot as SVG: the same bytes for the same result, of all three engines, and version of matplotlib."""
    result: Mapping[str, Any] = json.loads(result_file.read_text())
    engines, machine = result["engines"], result["machine"]
    with plt.rc_context({"svg.hashsalt": "readme", "axes.titlesize": 10.5, "axes.titlelocation": "left"}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.5), layout="constrained")
        _bars(left, engines, "e2e_ms_p50", "{:,.0f}", "ms for one answer, new columns (median)")
        _bars(right, engines, "answers_per_s_8", "{:.2f}", "answers a second, 8 requests at once")
        source = f"CPU only: {machine['cpu']}, {machine['cores']} cores, {result['date'][:10]} · {result_file.name}"
        figure.supxlabel(source, fontsize=8, color="#5a6472", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
        plt.close(figure)


def _bars(axes: Axes, engines: Mapping[str, Any], figure: str, form: str, title: str) -> None:
    """Draw one figure of each engine."""
    values = [engines[name][figure] for name in _ENGINES]
    drawn = axes.barh(list(_ENGINES.values()), values, color=[_OURS, _OTHERS, _OTHERS], height=0.62)
    axes.bar_label(drawn, [form.format(value) for value in values], padding=4)
    axes.set_title(title)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
