"""Measures what a checkpoint lost against the one it was made from, and finds the limits that this passes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.compare.plain_weights import PlainWeights, weight_errors
from pipeline.weights.calibration import calibration_tokens
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError

Texts = list[tuple[list[int], int]]  # token ids, and the first that counts


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


def compare_checkpoints(
    before: Path,
    after: Path,
    *,
    limits: Limits,
    cases: Path | None = None,
    calibration: Path | None = None,
    task: Path | None = None,
    max_cases: int = 100,
    max_tokens: int = 4096,
) -> dict[str, Any]:
    """The report of scripts/compare.

    Args:
        before: folder of a checkpoint.
        after: folder of what was made of it.
        cases: cases of the task, for logits over the reference answers, and for scores; None leaves the scores out.
        calibration: or texts, for logits over all their tokens.
        task: task file for the cases, instead of the checkpoints' own.
        max_cases: use at most the first cases.
        max_tokens: compare logits on texts of at most so many tokens, padding included.

    Raises:
        CheckpointError, ServingError, TaskError: an input cannot be used.
    """
    start = time.monotonic()
    first, second = PlainWeights(before), PlainWeights(after)
    report: dict[str, Any] = {"before": before.name, "after": after.name, "limits": asdict(limits)}
    say("Comparing weights")
    report["weights"] = _weights(first, second)
    texts = _texts(before, after, cases, calibration, task, max_cases, max_tokens)
    report["logits"] = None if texts is None else _logits(first, second, texts)
    report["scores"] = None
    if cases is not None:
        from pipeline.compare.scores import score_both, task_file_of  # the engine

        say("Answering the cases with both checkpoints")
        report["scores"] = score_both(before, after, cases, task_file_of(before, after, task), max_cases)
    found = failures(report, limits)
    return {**report, "passed": not found, "failures": found, "seconds": round(time.monotonic() - start, 1)}


def _weights(first: PlainWeights, second: PlainWeights) -> dict[str, Any]:
    errors = dict(weight_errors(first, second))
    worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))  # `max` alone skips NaN
    return {
        "worst": {"layer": worst, "error": errors[worst]},
        "mean": sum(errors.values()) / len(errors),
        "layers": dict(sorted(errors.items(), key=lambda item: (int(item[0].split(".")[2]), item[0]))),
    }


def _logits(first: PlainWeights, second: PlainWeights, texts: Texts) -> dict[str, Any]:
    from pipeline.compare.divergence import divergences  # torch and transformers: slow to import

    say(f"Comparing logits on {len(texts)} texts of {sum(len(ids) for ids, _ in texts):,} tokens")
    return {"texts": len(texts), **asdict(divergences(first, [second], texts)[0])}


def _texts(
    before: Path,
    after: Path,
    cases: Path | None,
    calibration: Path | None,
    task: Path | None,
    max_cases: int,
    max_tokens: int,
) -> Texts | None:
    if cases is not None:
        from pipeline.compare.scores import task_file_of
        from pipeline.evaluate.case_tokens import case_tokens

        found = case_tokens(cases, before, task_file_of(before, after, task), max_cases)
    elif calibration is not None:
        found = [(ids, 1) for ids in calibration_tokens(calibration, before, max_tokens)]
    else:
        return None
    chosen = texts_that_fit(found, max_tokens)
    if not chosen:
        longest = len(found[0][0]) if found else 0
        raise CheckpointError(f"the first text has {longest:,} tokens, more than --max-tokens {max_tokens:,}; raise it")
    return chosen


def texts_that_fit(texts: Iterable[tuple[list[int], int]], max_tokens: int) -> Texts:
    """The first of some texts that have together at most so many tokens, each padded to the longest of them."""
    chosen: Texts = []
    longest = 0
    for ids, start in texts:
        longest = max(longest, len(ids))
        if longest * (len(chosen) + 1) > max_tokens:
            break
        chosen.append((ids, start))
    return chosen


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
