"""What people read of a new version: the table of candidates, and its card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.improve.choice import Candidate
from pipeline.improve.data import Data
from pipeline.package.version import Share
from pipeline.train.card import short

_SHOWN = 20  # lost answers of a set that are named
_LONG = 160  # characters


def table(parent: str, candidates: Sequence[Candidate], limit: float) -> Iterator[str]:
    """The lines of the table: what each candidate answers right, and the paired difference."""
    sets = candidates[0].sets
    yield f"| right answers | {parent} | " + " | ".join(one.name for one in candidates) + " |"
    yield "|---|" + "---|" * (len(candidates) + 1)
    rows = {f"{name} ({found.n})": [one.sets[name] for one in candidates] for name, found in sets.items()}
    rows[f"all old ones together ({candidates[0].old.n})"] = [one.old for one in candidates]
    rows["agreement with held-out corrections, F1 of an answer's parts"] = [one.gain for one in candidates]
    for name, found in rows.items():
        yield f"| {name} | {100 * found[0].before:.1f} % | " + " | ".join(map(_cell, found)) + " |"
    yield ""
    for one in candidates:
        yield f"- {one.name}: {one.fault(limit) or 'can be chosen'}."


def _cell(found: Share) -> str:
    difference, low, high = (100 * value for value in (found.difference, found.low, found.high))
    return f"{100 * found.after:.1f} % ({difference:+.1f}, {low:+.1f} to {high:+.1f})"


def card(
    name: str,
    parent: str,
    chosen: Candidate,
    candidates: Sequence[Candidate],
    data: Data,
    speed: dict[str, dict[str, float]],
    *,
    limit: float,
) -> Iterator[str]:
    """The lines of a version's card."""
    yield f"# {name}"
    yield ""
    yield f"Improved from `{parent}`: {data.learned} corrections were learned, with {data.replayed:,} old examples."
    yield f"Chosen was the candidate `{chosen.name}`."
    yield ""
    yield "Points in brackets are paired differences from the version before, with 95 % intervals. Held-out corrections"
    yield "were not learned. Old examples may lose, at the lower end of the interval of all together, at most"
    yield f"{100 * chosen.limit(limit):.1f} points."
    yield ""
    yield from table(parent, candidates, limit)
    yield ""
    for when, found in speed.items():
        yield (
            f"- {when} version: {found['model_passes']:.1f} passes and {found['output_tokens']:.0f} tokens an "
            f"answer, half of the answers within {found['median_seconds']:.2f} s, 16 at once"
        )
    yield ""
    yield from lost(chosen)


def lost(candidate: Candidate) -> Iterator[str]:
    """The answers that were right before and are not now, by name."""
    yield "## Right before, not now"
    yield ""
    if not any(candidate.lost.values()):
        yield "None of the questions."
    for name, found in candidate.lost.items():
        if found:
            yield f"{name[:1].upper()}{name[1:]}: {len(found)}"
            yield ""
            yield from (_failure(one) for one in found[:_SHOWN])
            if len(found) > _SHOWN:
                yield f"- and {len(found) - _SHOWN} more"
            yield ""


def _failure(one: Any) -> str:
    question, answer, reference = (short(one[name], _LONG) for name in ("question", "answer", "reference"))
    return f"- {question} → {answer}, not {reference}"
