"""Which measures of a comparison are past their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """What a checkpoint may lose.

    Args:
        weights: relative error of a layer's weights. Rounding to nearest in groups of 128 gives 0.31 in the worst layer
            of Qwen2.5-Coder-0.5B, which has a few channels of large weights, so less than that would refuse sound
            checkpoints; a layer of zeros gives 1.
        logits: mean divergence of the next token's distribution in nats.
        score: percentage points of any of the task's measures.
    """

    weights: float = 0.4
    logits: float = 0.1
    score: float = 5.0

    def as_json(self) -> dict[str, float]:
        """The limits by name."""
        return asdict(self)


def failures(report: Mapping[str, Any], limits: Limits) -> list[str]:
    """A sentence for each limit that was passed: which one, and by how much. NaN and infinities exceed any limit."""
    found = []
    worst = report["weights"]["worst"]
    if not _is_within(worst["error"], limits.weights):
        found.append(
            _sentence(f"the weights of {worst['layer']} differ by {worst['error']:.3f}", worst["error"], limits.weights)
        )
    logits = report.get("logits")
    if logits is not None and not _is_within(logits["kl"], limits.logits):
        found.append(_sentence(f"the logits diverge by {logits['kl']:.4f} nats", logits["kl"], limits.logits))
    for name, measure in report["scores"]["measures"].items() if report.get("scores") else ():
        lost = -measure["points"]
        if not _is_within(lost, limits.score):
            low, high = measure["interval"]
            shown = f"{lost:.1f} points of {report['scores']['cases']} cases (95 % interval {low:+.1f} to {high:+.1f})"
            found.append(_sentence(f"the score {name} fell by {shown}", lost, limits.score))
    return found


def _is_within(value: float, limit: float) -> bool:
    return math.isfinite(value) and value <= limit


def _sentence(what: str, value: float, limit: float) -> str:
    passed_by = f", passed by {value - limit:.3g}" if math.isfinite(value) else ""
    return f"{what}; the limit is {limit:g}{passed_by}"
