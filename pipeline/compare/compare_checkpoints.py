"""Measure what a checkpoint lost against the one it was made from: weights, logits, and the task's scores."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.compare.plain_weights import PlainWeights
from pipeline.compare.verdict import Limits, failures
from pipeline.compare.weight_error import weight_errors
from pipeline.weights.calibration import calibration_tokens
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError

Texts = list[tuple[list[int], int]]  # token ids, and the first that counts


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
        limits: what may be lost.
        cases: of the task, for logits over the reference answers, and for scores; None leaves the scores out.
        calibration: or texts, for logits over all their tokens.
        task: task file for the cases, instead of the checkpoints' own.
        max_cases: use at most the first cases.
        max_tokens: compare logits on texts of at most so many tokens, padding included.

    Raises:
        CaseFileError, CheckpointError, ServingError, TaskError: an input cannot be used.
    """
    start = time.monotonic()
    first, second = PlainWeights(before), PlainWeights(after)
    report: dict[str, Any] = {"before": before.name, "after": after.name, "limits": limits.as_json()}
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
    from pipeline.compare.divergence import divergence  # torch and transformers: slow to import

    say(f"Comparing logits on {len(texts)} texts of {sum(len(ids) for ids, _ in texts):,} tokens")
    return {"texts": len(texts), **asdict(divergence(first, second, texts))}


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
        from pipeline.evaluate.calibration_cases import case_tokens

        found = case_tokens(cases, before, task_file_of(before, after, task), max_cases)
    elif calibration is not None:
        found = [(ids, 1) for ids in calibration_tokens(calibration, before, max_tokens)]
    else:
        return None
    chosen: Texts = []
    longest = 0
    for ids, start in found:
        longest = max(longest, len(ids))
        if longest * (len(chosen) + 1) > max_tokens:
            break
        chosen.append((ids, start))
    if not chosen:
        raise CheckpointError(f"the first text has {longest:,} tokens, more than --max-tokens {max_tokens:,}; raise it")
    return chosen
