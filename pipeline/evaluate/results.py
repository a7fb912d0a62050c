"""Summarizes the scores of a run as a result file, and compares two result files.

A proportion is {"value", "low", "high"}, with Wilson's interval. Precision is the share of the answers' parts that the
references have too, recall the share of the references' parts that the answers have, F1 their harmonic mean; all are
taken over the parts of all answers, and their intervals are bootstrapped over answers.
"""

from __future__ import annotations

import hashlib
import math
import platform
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluate.answering import CaseAnswer
from tasks.evaluation.cases import Counts, Score

_MAX_PARTS: Final = 60  # parts that get a line of their own: those that references have most often
_RESAMPLES: Final = 1000
_AT_ONCE: Final = 50  # resamples in one product of matrices
_Z: Final = 1.959963984540054  # 95 % of a normal distribution lie within ± Z
_RIGHT, _GIVEN, _WANTED = 0, 1, 2

Totals = NDArray[np.float64]  # [..., 3]: parts that are right, given, expected


class ResultsError(Exception):
    """Two result files cannot be compared; the message says why."""


def describe(data: Path, cases: int, **settings: Any) -> dict[str, Any]:
    """The command, data, settings and machine of a run, for its result file."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "data": {"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest(), "cases": cases},
        "settings": settings,
        "machine": platform.platform(),
        "python": platform.python_version(),
    }


def describe_speed(answers: Sequence[CaseAnswer]) -> dict[str, float]:
    """Median seconds, and mean tokens and forward passes of answers."""
    seconds = sorted(a.seconds for a in answers)
    return {
        "median_seconds": seconds[len(seconds) // 2],
        "output_tokens": sum(a.output_tokens for a in answers) / len(answers),
        "model_passes": sum(a.model_passes for a in answers) / len(answers),
    }


def summarize(scores: Sequence[Score], about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a result file, from at least one score and the description of the run."""
    ordered = sorted(scores, key=lambda score: score.case.line)
    names = list(ordered[0].measures)
    main = category_measure(ordered[0].measures)
    by_category: dict[str, list[Score]] = {}
    for score in ordered:
        if score.case.category is not None:
            by_category.setdefault(score.case.category, []).append(score)
    return {
        **about,
        "n": len(ordered),
        **_shares(ordered, names),
        **_part_measures([score.counts for score in ordered if score.counts]),
        "categories": {
            name: {"n": len(found), **_shares(found, names[names.index(main) :])}
            for name, found in sorted(by_category.items())
        },
        "failures": [_failure(score) for score in ordered if not score.measures[main]],
        "scores": [{"line": score.case.line, **score.measures} for score in ordered],
        "agreement": [_agreement(score, main) for score in ordered],
    }


def _agreement(score: Score, main: str) -> float:
    """How much of an answer is right, from 0 to 1: F1 of its parts, where it has parts; 1 for a right answer."""
    if score.measures[main] or not score.counts:
        return float(score.measures[main])
    return round(float(_f1(np.array(list(score.counts.values()), dtype=np.float64).sum(axis=0))), 4)


def confidence_results(scores: Sequence[Score], answers: Mapping[int, CaseAnswer]) -> dict[str, Any]:
    """For each answer whose fields' probabilities are known, [probability, whether it is right] of its fields."""
    found = [
        [
            [round(probabilities[pointer], 4), is_right]
            for pointer, is_right in score.fields.items()
            if pointer in probabilities
        ]
        for score in sorted(scores, key=lambda score: score.case.line)
        if (probabilities := answers[score.case.line].probabilities)
    ]
    return {"confidence": found} if any(found) else {}


def _shares(scores: Sequence[Score], names: Sequence[str]) -> dict[str, dict[str, float]]:
    return {name: share([score.measures[name] for score in scores]) for name in names}


def _failure(score: Score) -> dict[str, Any]:
    case = score.case
    return {
        "line": case.line,
        "category": case.category,
        "question": score.question,
        "reference": score.reference,
        "answer": score.answer,
        "problem": score.problem,
        **score.measures,
    }


def _part_measures(counts: Sequence[Counts]) -> dict[str, Any]:
    """Precision, recall and F1 over all parts, and F1 of each part, with bootstrap intervals."""
    if not counts:
        return {"f1": {}}
    names = sorted({name for one in counts for name in one})
    found = np.array([[one.get(name, (0, 0, 0)) for name in names] for one in counts], dtype=np.float64)  # [n, P, 3]
    whole, drawn = found.sum(axis=0), _drawn_totals(found)  # [P, 3], [_RESAMPLES, P, 3]
    all_parts = whole.sum(axis=0), drawn.sum(axis=1)
    often = sorted(range(len(names)), key=lambda i: -whole[i, _WANTED])[:_MAX_PARTS]
    shown = [i for i in sorted(often) if names[i] and whole[i, _WANTED]]
    return {
        "precision": _measure(_precision, *all_parts),
        "recall": _measure(_recall, *all_parts),
        "f1": {
            "all": _measure(_f1, *all_parts),
            **{names[i]: _measure(_f1, whole[i], drawn[:, i]) for i in shown},
        },
    }


def _drawn_totals(found: Totals) -> Totals:
    """Totals of bootstrap samples: as many answers as there are, drawn with replacement, for each resample."""
    n = len(found)
    generator = np.random.default_rng(0)
    flat = found.reshape(n, -1)
    drawn = [generator.multinomial(n, np.full(n, 1 / n), _AT_ONCE) @ flat for _ in range(_RESAMPLES // _AT_ONCE)]
    return np.concatenate(drawn).reshape(_RESAMPLES, *found.shape[1:])


def _measure(ratio: Callable[[Totals], Totals], whole: Totals, drawn: Totals) -> dict[str, float]:
    low, high = np.quantile(ratio(drawn), (0.025, 0.975))
    return {"value": float(ratio(whole)), "low": float(low), "high": float(high)}


def _precision(totals: Totals) -> Totals:
    return _divide(totals[..., _RIGHT], totals[..., _GIVEN])


def _recall(totals: Totals) -> Totals:
    return _divide(totals[..., _RIGHT], totals[..., _WANTED])


def _f1(totals: Totals) -> Totals:
    return _divide(2 * totals[..., _RIGHT], totals[..., _GIVEN] + totals[..., _WANTED])


def _divide(part: Totals, whole: Totals) -> Totals:
    """part / whole, and 1 where whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), 1.0)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion (Wilson 1927), which is in it; within [0, 1], also after rounding."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z * _Z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def share(passed: Sequence[bool]) -> dict[str, float]:
    """The proportion of `passed` as a result file has it: {"value", "low", "high"}; not of no items."""
    low, high = wilson(sum(passed), len(passed))
    return {"value": sum(passed) / len(passed), "low": low, "high": high}


def paired_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean of `second` minus that of `first` on the same cases, with its 95 % bootstrap interval (Efron 1979)."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    draw = random.Random(0)
    means = sorted(sum(draw.choices(differences, k=len(differences))) / len(differences) for _ in range(_RESAMPLES))
    low, high = (means[round(share * (_RESAMPLES - 1))] for share in (0.025, 0.975))
    return sum(differences) / len(differences), (low, high)


def measures_of(results: dict[str, Any]) -> list[str]:
    """The names of the proportions in a result file, whatever the task."""
    return [
        name for name, value in results.items() if isinstance(value, dict) and value.keys() == {"value", "low", "high"}
    ]


def category_measure(results: Mapping[str, Any]) -> str:
    """What a result file has of each category: whether answers are accepted, or else exact."""
    return "accepted" if "accepted" in results else "exact"


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The differences of all measures, second minus first, with paired bootstrap intervals.

    Raises:
        ResultsError: the files are about different data, cases or tasks.
    """
    if first["data"]["sha256"] != second["data"]["sha256"]:
        raise ResultsError(f"different data: {first['data']['file']} and {second['data']['file']}; use one file")
    by_line = [{s["line"]: s for s in results["scores"]} for results in (first, second)]
    if by_line[0].keys() != by_line[1].keys():
        raise ResultsError(f"different cases: {len(by_line[0])} and {len(by_line[1])}; use the same --limit")
    lines = sorted(by_line[0])
    differences: dict[str, Any] = {"n": len(lines)}
    measures = [[name for name in results["scores"][0] if name != "line"] for results in (first, second)]
    if measures[0] != measures[1]:
        raise ResultsError(f"different tasks: one measured {measures[0]}, the other {measures[1]}")
    for name in measures[0]:
        difference, (low, high) = paired_difference(*([side[i][name] for i in lines] for side in by_line))
        differences[name] = {"difference": difference, "low": low, "high": high}
    return differences
