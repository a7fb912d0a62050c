"""The record of a training run: run.json and a plot of the loss."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from pipeline.weights.atomic import write_json
from pipeline.weights.cpu_name import cpu_name

RUN: Final = "run.json"
STATE: Final = "state.safetensors"  # the parameters and the optimizer's moments, to go on from


@dataclass
class Point:
    """One point of a curve; `loss` is per answer token, `seconds` since the start."""

    step: int
    samples: int
    seconds: float
    loss: float
    learning_rate: float | None = None


@dataclass
class RunRecord:
    """The settings, data, hardware, position and curves of a run; enough to judge it and to resume it."""

    settings: dict[str, Any]
    data: list[dict[str, Any]]
    hardware: dict[str, Any] = field(default_factory=lambda: describe_hardware())
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    epoch: int = 0
    offset: int = 0
    finished: bool = False
    train_curve: list[Point] = field(default_factory=list)
    validation_curve: list[Point] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write run.json atomically."""
        write_json(folder / RUN, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        """Read run.json."""
        values = json.loads((folder / RUN).read_text())
        for curve in ("train_curve", "validation_curve"):
            values[curve] = [Point(**p) for p in values[curve]]
        return cls(**values)

    def followed_by(self, later: RunRecord) -> RunRecord:
        """The curves of this run, and then those of one that went on from its adapter."""

        def joined(first: list[Point], second: list[Point]) -> list[Point]:
            return [*first, *(replace(point, samples=self.samples + point.samples) for point in second)]

        train = joined(self.train_curve, later.train_curve)
        return replace(self, train_curve=train, validation_curve=joined(self.validation_curve, later.validation_curve))

    def draw(self, folder: Path) -> None:
        """Plot the curves to loss.png."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
        self.plot(figure.add_subplot())
        figure.savefig(folder / "loss.png")

    def plot(self, axes: Any) -> None:
        """Plot the curves on axes of matplotlib."""
        for curve, label in ((self.train_curve, "training"), (self.validation_curve, "validation")):
            axes.plot([p.samples for p in curve], [p.loss for p in curve], label=label)
        axes.set(xlabel="examples seen", ylabel="loss per answer token", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()


def describe_data(path: Path, examples: int) -> dict[str, Any]:
    """Name, number of examples and SHA-256 of a data file."""
    return {"file": path.name, "examples": examples, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def describe_hardware() -> dict[str, Any]:
    """The hardware and software of the machine."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": torch.backends.cpu.get_cpu_capability() + " " + cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "torch": torch.__version__,
        "system": platform.platform(),
    }
