"""Measures how often fields were right by their probability, and fits the map from one to the other.

The map rises: groups of fields of similar probability are merged with the next one until each has a larger share of
right fields than the one before (pool adjacent violators, Ayer et al. 1955).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from pipeline.evaluate.results import wilson
from pipeline.weights.atomic import write_text
from tasks.confidence import DOUBTFUL_BELOW, Calibration, calibration_path

_EDGES: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)  # most fields are sure
_LEAST: Final = 20  # fields of a group
_LEAST_ANSWERS: Final = 50
Fields = Sequence[tuple[float, bool]]  # of an answer: the probability of each field, and whether it is right
Group = tuple[float, float, int]  # mean probability, share of right fields, number of fields


def fit(answers: Sequence[Fields]) -> Calibration | None:
    """The calibration that answers show; None for too few.

    Args:
        answers: that the model had not learned.
    """
    if len(answers) < _LEAST_ANSWERS:
        return None
    return Calibration(
        answers=len(answers),
        fields=len(_joined(answers)),
        points=_rising(groups(_joined(answers))),
        error=_error(_joined(answers)),
        error_left=_error(_shares_of_halves(answers)),
    )


def groups(fields: Fields) -> list[Group]:
    """Fields of similar probability, at least `_LEAST` in a group if there are so many."""
    found: list[list[tuple[float, bool]]] = [[]]
    edges = [*_EDGES, 2.0]
    for probability, is_right in sorted(fields):
        while probability >= edges[0]:
            del edges[0]
            if len(found[-1]) >= _LEAST:
                found.append([])
        found[-1].append((probability, is_right))
    if len(found) > 1 and len(found[-1]) < _LEAST:
        last = found.pop()
        found[-1] += last
    return [_group(one) for one in found if one]


def write_reliability(weights: Path, answers: Sequence[Fields]) -> Iterator[str]:
    """Write NAME.confidence.json and its plot beside a checkpoint, or remove those of another; the lines of a card.

    Args:
        answers: that it had not learned, as `confidence` of a result file has them.
    """
    file, picture = calibration_path(weights), weights.with_name(f"{weights.name}.confidence.png")
    calibration = fit(answers)
    yield "## Confidence"
    yield ""
    if calibration is None:
        file.unlink(missing_ok=True)
        picture.unlink(missing_ok=True)
        known = f"the probabilities of fields are known for {len(answers)} answers"
        yield f"Not measured: {known}; {_LEAST_ANSWERS} are needed."
        yield ""
        return
    write_text(file, calibration.model_dump_json(indent=2) + "\n")
    draw(picture, answers, calibration)
    doubtful = [is_right for p, is_right in _joined(answers) if calibration.share(p) < DOUBTFUL_BELOW]
    wrong = sum(not is_right for _, is_right in _joined(answers))
    yield f"![How often fields were right, by their probability]({picture.name})"
    yield ""
    yield f"From {calibration.answers} answers that were not learned, with {calibration.fields:,} fields. The expected"
    yield f"calibration error is {100 * calibration.error:.1f} points for the lowest token probability of a field, and"
    yield f"{100 * calibration.error_left:.1f} for the share that the other half of the answers gives for it."
    yield f"Below {100 * DOUBTFUL_BELOW:.0f} %, and so doubtful, are {len(doubtful)} fields, among them"
    yield f"{doubtful.count(False)} of the {wrong} wrong ones."
    yield ""


def draw(path: Path, answers: Sequence[Fields], calibration: Calibration) -> None:
    """Draw the share of right fields by probability, with 95 % intervals, and the map that was fitted."""
    figure = Figure(figsize=(5.5, 4.5), dpi=100, layout="constrained")
    axes = figure.subplots()
    found = groups(_joined(answers))
    ends = [wilson(round(share * count), count) for _, share, count in found]
    reach = [
        [100 * (share - low) for (_, share, _), (low, _) in zip(found, ends, strict=True)],
        [100 * (high - share) for (_, share, _), (_, high) in zip(found, ends, strict=True)],
    ]
    places, shares = [100 * p for p, _, _ in found], [100 * share for _, share, _ in found]
    axes.plot([0, 100], [0, 100], color="0.7", linewidth=1, label="as sure as right")
    axes.errorbar(places, shares, yerr=reach, fmt="o", markersize=4, label="measured, with 95 % intervals")
    grid = [i / 200 for i in range(201)]
    axes.plot([100 * p for p in grid], [100 * calibration.share(p) for p in grid], label="shown")
    axes.axhline(100 * DOUBTFUL_BELOW, color="0.5", linestyle=":", label="below it: doubtful")
    axes.set(xlim=(0, 101), ylim=(0, 102), xlabel="lowest token probability of a field, %", ylabel="right fields, %")
    axes.set_title(
        f"{calibration.answers} answers, {calibration.fields:,} fields: calibration error "
        f"{100 * calibration.error:.1f}, then {100 * calibration.error_left:.1f} points",
        fontsize="medium",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path)


def confidence_of(*results: dict[str, Any]) -> list[Fields]:
    """What result files of scripts/evaluate have of the fields of all answers."""
    return [[(float(p), bool(right)) for p, right in one] for each in results for one in each.get("confidence", [])]


def _group(fields: Fields) -> Group:
    return sum(p for p, _ in fields) / len(fields), sum(right for _, right in fields) / len(fields), len(fields)


def _rising(found: Sequence[Group]) -> tuple[Group, ...]:
    """Groups of which each has a larger share than the one before."""
    merged: list[Group] = []
    for group in found:
        merged.append(group)
        while len(merged) > 1 and merged[-2][1] >= merged[-1][1]:
            second, first = merged.pop(), merged.pop()
            merged.append(_together(first, second))
    return tuple(merged)


def _together(first: Group, second: Group) -> Group:
    count = first[2] + second[2]
    place, share = ((first[i] * first[2] + second[i] * second[2]) / count for i in (0, 1))
    return place, share, count


def _shares_of_halves(answers: Sequence[Fields]) -> Fields:
    """The fields with the share that the other half of the answers gives for their probability."""
    halves = answers[::2], answers[1::2]
    maps: list[Callable[[float], float]] = [
        Calibration(points=_rising(groups(_joined(half)))).share for half in reversed(halves)
    ]
    return [(share(p), right) for half, share in zip(halves, maps, strict=True) for p, right in _joined(half)]


def _error(fields: Fields) -> float:
    """The expected calibration error (Naeini et al. 2015), in groups."""
    found = groups(fields)
    return sum(count * abs(place - share) for place, share, count in found) / len(fields)


def _joined(answers: Sequence[Fields]) -> list[tuple[float, bool]]:
    return [field for answer in answers for field in answer]
