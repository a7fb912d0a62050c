"""Compares candidates with the current version on the same questions, and chooses one or refuses all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.evaluate.results import category_measure, paired_difference
from pipeline.improve.data import EXAMPLES, HELD_OUT
from pipeline.package.version import Share

TRIES: Final = 3  # candidates at most
LIMIT: Final = 3.0  # points that old examples may lose
_LOST: Final = 3  # answers: the 95 % interval of a single one that was lost by chance reaches so far


def compared(before: Sequence[float], after: Sequence[float]) -> Share:
    """How a candidate's answers compare with the current version's to the same questions, at least one."""
    n, (_, (low, high)) = len(before), paired_difference(before, after)
    return Share(n=n, before=sum(before) / n, after=sum(after) / n, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate and how it compares.

    Args:
        name: its name for people.
        share: of the trained adapter; the rest is the current one.
        sets: by the name of the set.
        old: all sets together that are neither corrections nor the playground's examples.
        gain: the agreement with the held-out corrections. They are few, so counting only answers that are right as a
            whole would mostly compare chance.
        lost: questions that the current version answers right and the candidate does not, by the name of the set.
    """

    name: str
    share: float
    sets: Mapping[str, Share]
    old: Share
    gain: Share
    lost: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def of(cls, name: str, share: float, before: Mapping[str, Answers], after: Mapping[str, Answers]) -> Candidate:
        """Compare a candidate's answers with the current version's, set by set."""
        found, lost = dict[str, Share](), dict[str, list[Mapping[str, Any]]]()
        pooled = list[bool](), list[bool]()
        for key, first in before.items():
            lines = sorted(first.right.keys() & after[key].right.keys())
            pair = [first.right[n] for n in lines], [after[key].right[n] for n in lines]
            found[key] = compared(*pair)
            lost[key] = [after[key].failures[n] for n in lines if first.right[n] and not after[key].right[n]]
            if key not in (HELD_OUT, EXAMPLES):
                for whole, part in zip(pooled, pair, strict=True):
                    whole.extend(part)
        corrected = before[HELD_OUT].agreement.keys()
        gain = compared(*([side[HELD_OUT].agreement[n] for n in corrected] for side in (before, after)))
        return cls(name, share, found, compared(*pooled), gain, lost)

    def limit(self, points: float) -> float:
        """How much of the share of old examples the lower end may lose: `points`, or `_LOST` answers of few."""
        return max(points / 100, _LOST / self.old.n)

    def loses(self, points: float) -> bool:
        """Whether it may lose more old examples than the limit."""
        return self.old.low < -self.limit(points)

    def fault(self, points: float) -> str | None:
        """Why it is no better version; None if it is."""
        if self.gain.difference <= 0:
            return "agrees no more with the held-out corrections than the current version"
        if self.loses(points):
            limit = self.limit(points)
            return f"may lose {-100 * self.old.low:.1f} points of the old examples; the limit is {100 * limit:.1f}"
        return None


@dataclass(frozen=True, slots=True)
class Answers:
    """What a model answered to one set.

    Args:
        right: by line, whether the answer is right.
        agreement: by line, how much of the answer is right, from 0 to 1.
        failures: by line, those that are not, as result files have them.
    """

    right: Mapping[int, bool]
    agreement: Mapping[int, float]
    failures: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(cls, results: Mapping[str, Any], lines: Sequence[int] | None = None) -> Answers:
        """Those of a result file of scripts/evaluate; `lines` are those of the set, None for all."""
        measure, wanted = category_measure(results), None if lines is None else set(lines)
        found = [
            (one["line"], bool(one[measure]), agreement)
            for one, agreement in zip(results["scores"], results["agreement"], strict=True)
            if wanted is None or one["line"] in wanted
        ]
        right, agreement = ({one[0]: one[i] for one in found} for i in (1, 2))
        return cls(right, agreement, {one["line"]: one for one in results["failures"]})


def choose(candidates: Sequence[Candidate], limit: float) -> Candidate | None:
    """The candidate that agrees most with held-out corrections, of those within the limit on old examples.

    Where several agree as much, the one that answers more old examples is chosen, then the one with more of the
    current adapter.

    Args:
        candidates: at least one.
        limit: points that the lower end of the interval on old examples may be below 0.
    """
    able = [one for one in candidates if one.fault(limit) is None]
    return max(able, key=lambda one: (one.gain.after, one.old.after, -one.share), default=None)


def next_share(tried: Mapping[float, Candidate], limit: float) -> float | None:
    """The share of the trained adapter in the next candidate; None where enough were tried.

    The more of it, the more is learned and the more is lost. So half of it is tried first, then all of it or a quarter,
    and then the middle between the largest share that loses no old examples and the smallest that does.
    """
    losing = min((share for share, one in tried.items() if one.loses(limit)), default=None)
    holding = max((share for share in tried if losing is None or share < losing), default=0.0)
    if not tried:
        return 0.5
    if losing is None:
        return None if holding == 1 else 1.0
    return None if len(tried) == TRIES else (losing + holding) / 2
