"""What the stages of a check find, in a JSON file that is whole at any time, and as a table for people."""

from __future__ import annotations

import json
import math
import textwrap
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import write_json

_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Args:
        group: a line of the table: figures with the same one stand beside each other.
        what: was measured or counted.
        value: of it; None if it is no finite number.
        unit: of the value.
        limit: the largest value that is right; None for a measurement, which nothing calls wrong.
        note: how it was obtained, or what it means, where that is not plain.
    """

    group: str
    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    note: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the value exceeds its limit; a value that is no number does."""
        return self.limit is not None and not (self.value is not None and self.value <= self.limit)


@dataclass(slots=True)
class StageReport:
    """What one stage has found so far.

    Args:
        name: of the stage.
        where: what computed its figures.
        status: "running", "done", or "broken" if it ended early.
        seconds: that it took.
        figures: in the order of the table.
        wrong: what was wrong besides figures over their limits, in words.
        not_run: what was not run, with the reason.
        texts: tables of other tools.
    """

    name: str
    where: str
    status: str = "running"
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def add(
        self, group: str, what: str, value: float, unit: str = "", *, limit: float | None = None, note: str = ""
    ) -> None:
        """Add a figure."""
        self.figures.append(Figure(group, what, value if math.isfinite(value) else None, unit, limit, note))

    def fill(self, work: Callable[[StageReport], None]) -> None:
        """Let the stage's work fill it. An exception ends this stage, not the next ones."""
        begun = time.monotonic()
        try:
            work(self)
            self.status = "done"
        except Exception:
            self.status = "broken"
            self.wrong.append(traceback.format_exc(limit=-6))
        self.seconds = round(time.monotonic() - begun, 1)

    @property
    def verdict(self) -> str:
        """What became of the stage; a part that was not run changes nothing about the rest."""
        if self.wrong or self.status != "done" or any(figure.is_wrong for figure in self.figures):
            return "WRONG"
        if not self.figures:
            return "not run"
        return "right" if any(figure.limit is not None for figure in self.figures) else "measured"


@dataclass(slots=True)
class Run:
    """A run of the command: what it ran on, and its stages."""

    about: dict[str, Any]
    stages: list[StageReport] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Run:
        """What the file has."""
        data = json.loads(path.read_text("utf-8"))
        stages = [
            StageReport(
                **{k: v for k, v in one.items() if k != "verdict"} | {"figures": [Figure(**f) for f in one["figures"]]}
            )
            for one in data.pop("stages")
        ]
        return cls(data, stages)

    def write(self, path: Path) -> None:
        """Replace the file."""
        stages = [{"verdict": stage.verdict, **asdict(stage)} for stage in self.stages]
        write_json(
            path, {**self.about, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "stages": stages}
        )

    def table(self) -> str:
        """Everything, a line for each group of figures."""
        summary = ", ".join(f"{stage.name} {stage.verdict}" for stage in self.stages)
        machine = self.about.get("machine", "the machine is not known")
        return "\n".join([f"== {machine}", *map(_section, self.stages), f"== {summary}"])


def _section(stage: StageReport) -> str:
    lines = [f"-- {stage.name}: {stage.verdict} ({stage.seconds:.0f} s; {stage.where})"]
    for group, figures in groupby(stage.figures, key=lambda figure: figure.group):
        lines += textwrap.wrap(f"{group}: {', '.join(map(_shown, figures))}", _WIDTH, subsequent_indent="    ")
    lines += [f"WRONG: {fault[-1500:]}" for fault in stage.wrong]
    lines += [textwrap.shorten(f"not run: {reason}", 2 * _WIDTH) for reason in stage.not_run]
    return "\n".join(lines)


def _shown(figure: Figure) -> str:
    number = "no number" if figure.value is None else _number(figure.value)
    over = f" OVER {_number(figure.limit or 0.0)}" if figure.is_wrong else ""
    note = f" ({figure.note})" if figure.note else ""
    return f"{figure.what} {number}{' ' * bool(figure.unit)}{figure.unit}{note}{over}".strip()


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
