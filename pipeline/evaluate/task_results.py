"""Summarize the scores of schema and chat answers as a result file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.evaluate.intervals import RESAMPLES, share
from pipeline.evaluate.json_fields import Counts
from pipeline.evaluate.task_scoring import TaskScore

_MAX_PATHS: Final = 60  # fields that get a line of their own: those that references have most often
_AT_ONCE: Final = 50  # resamples in one product of matrices
_RIGHT, _GIVEN, _WANTED = 0, 1, 2

Totals = NDArray[np.float64]  # [..., 3]: fields that are right, given, expected


def summarize_task(scores: Sequence[TaskScore], about: dict[str, Any]) -> dict[str, Any]:
    """The content of a result file; it has precision, recall and F1 if answers are JSON."""
    ordered = sorted(scores, key=lambda s: s.line)
    categories = sorted({s.category for s in ordered if s.category is not None})
    return {
        **about,
        "n": len(ordered),
        "valid": share([s.valid for s in ordered]),
        "exact": share([s.exact for s in ordered]),
        **_field_measures([s.counts for s in ordered if s.counts]),
        "categories": {name: _category([s for s in ordered if s.category == name]) for name in categories},
        "failures": [_failure(s) for s in ordered if not s.exact],
        "scores": [{"line": s.line, "valid": s.valid, "exact": s.exact} for s in ordered],
    }


def _field_measures(counts: Sequence[Counts]) -> dict[str, Any]:
    """Precision, recall and F1 over all fields, and F1 of each path, with bootstrap intervals."""
    if not counts:
        return {"f1": {}}
    paths = sorted({path for one in counts for path in one})
    found = np.array([[one.get(path, (0, 0, 0)) for path in paths] for one in counts], dtype=np.float64)  # [n, P, 3]
    whole, drawn = found.sum(axis=0), _drawn_totals(found)  # [P, 3], [RESAMPLES, P, 3]
    all_fields = whole.sum(axis=0), drawn.sum(axis=1)
    often = sorted(range(len(paths)), key=lambda i: -whole[i, _WANTED])[:_MAX_PATHS]
    shown = [i for i in sorted(often) if paths[i] and whole[i, _WANTED]]
    return {
        "precision": _measure(_precision, *all_fields),
        "recall": _measure(_recall, *all_fields),
        "f1": {
            "all": _measure(_f1, *all_fields),
            **{paths[i]: _measure(_f1, whole[i], drawn[:, i]) for i in shown},
        },
    }


def _drawn_totals(found: Totals) -> Totals:
    """Totals of bootstrap samples: as many answers as there are, drawn with replacement, for each resample."""
    n = len(found)
    generator = np.random.default_rng(0)
    flat = found.reshape(n, -1)
    drawn = [generator.multinomial(n, np.full(n, 1 / n), _AT_ONCE) @ flat for _ in range(RESAMPLES // _AT_ONCE)]
    return np.concatenate(drawn).reshape(RESAMPLES, *found.shape[1:])


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


def _category(scores: Sequence[TaskScore]) -> dict[str, Any]:
    return {"n": len(scores), "exact": share([s.exact for s in scores])}


def _failure(score: TaskScore) -> dict[str, Any]:
    names = ("line", "category", "question", "reference", "answer", "problem", "valid", "exact")
    return {name: getattr(score, name) for name in names}
