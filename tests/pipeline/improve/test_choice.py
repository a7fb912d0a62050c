"""The choice among candidates: better on held-out corrections, and no worse on old examples within the limit."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.improve.card import lost, table
from pipeline.improve.choice import Answers, Candidate, choose, compared, next_share
from pipeline.improve.data import EXAMPLES, HELD_OUT, OLD

CURRENT = {HELD_OUT: [True] * 5 + [False] * 15, OLD: [True] * 500 + [False] * 100, EXAMPLES: [True, True]}


def answers(right: dict[str, list[bool]], partly: float = 0.0) -> dict[str, Answers]:
    """As of result files; each set has lines of its own. `partly` is how much of a wrong answer is right."""
    found = {}
    for first, (name, values) in enumerate(right.items()):
        scores = [{"line": 1000 * first + n, "valid": True, "exact": value} for n, value in enumerate(values)]
        wrong = [
            {"line": one["line"], "question": f"{name} {one['line']}", "answer": "no", "reference": "yes"}
            for one in scores
            if not one["exact"]
        ]
        agreement = [1.0 if one["exact"] else partly for one in scores]
        results: dict[str, Any] = {"scores": scores, "failures": wrong, "agreement": agreement}
        found[name] = Answers.of(results, [int(one["line"]) for one in scores])
    return found


def candidate(share: float, *, held_out: int, old_lost: int = 0, old_won: int = 0, examples: int = 2) -> Candidate:
    """One that answers as many held-out corrections and examples, and loses and wins old examples."""
    after = {
        HELD_OUT: [True] * held_out + [False] * (20 - held_out),
        OLD: [False] * old_lost + [True] * (500 - old_lost + old_won) + [False] * (100 - old_won),
        EXAMPLES: [True] * examples + [False] * (2 - examples),
    }
    return Candidate.of(f"mean {share:g}", share, answers(CURRENT), answers(after))


def test_the_one_that_answers_most_corrections_and_holds_is_chosen() -> None:
    trained = candidate(1, held_out=16, old_lost=40, old_won=2)  # improves and breaks
    most, half = candidate(0.75, held_out=12, old_lost=4, old_won=4), candidate(0.5, held_out=9)
    assert choose([trained, most, half], 2) is most
    assert "may lose" in str(trained.fault(2)) and "the limit is 2.0" in str(trained.fault(2))
    assert choose([trained, most, half], 20) is trained


@pytest.mark.parametrize(
    ("loses_from", "tried"),
    [(2.0, [0.5, 1]), (1.0, [0.5, 1, 0.75]), (0.3, [0.5, 0.25, 0.375]), (0.1, [0.5, 0.25, 0.125])],
)
def test_the_share_that_just_holds_is_looked_for_in_at_most_three_tries(loses_from: float, tried: list[float]) -> None:
    found = dict[float, Candidate]()
    while (share := next_share(found, 2)) is not None:
        found[share] = candidate(share, held_out=9, old_lost=40 if share >= loses_from else 0)
    assert list(found) == tried


def test_without_a_gain_none_is_chosen() -> None:
    same = candidate(1, held_out=5)
    assert choose([same, candidate(0.5, held_out=4)], 2) is None
    assert "no more with the held-out corrections" in str(same.fault(2))


def test_answers_that_come_nearer_to_held_out_corrections_are_a_gain_where_as_few_are_right() -> None:
    nearer = Candidate.of("mean 0.5", 0.5, answers(CURRENT, partly=0.5), answers(CURRENT, partly=0.6))
    assert choose([nearer], 2) is nearer and nearer.sets[HELD_OUT].difference == 0
    further = Candidate.of("mean 0.5", 0.5, answers(CURRENT, partly=0.5), answers(CURRENT, partly=0.4))
    assert choose([further], 2) is None


def test_where_corrections_are_equal_old_examples_and_then_the_current_adapter_decide() -> None:
    better, other = candidate(1, held_out=9, old_won=3), candidate(0.75, held_out=9)
    assert choose([other, better], 2) is better
    assert choose([candidate(0.75, held_out=9), half := candidate(0.5, held_out=9)], 2) is half


@pytest.mark.parametrize(("lost_ones", "holds"), [(1, True), (4, False)])
def test_of_few_old_examples_one_answer_may_change_by_chance(lost_ones: int, holds: bool) -> None:
    before = {HELD_OUT: [False] * 4, OLD: [True] * 30}
    after = {HELD_OUT: [True] * 4, OLD: [False] * lost_ones + [True] * (30 - lost_ones)}
    found = Candidate.of("trained adapter", 1, answers(before), answers(after))
    assert (found.fault(2) is None) is holds
    assert found.limit(2) == pytest.approx(0.1)


def test_lost_answers_are_named_one_by_one_and_all_candidates_are_in_the_table() -> None:
    found = candidate(0.5, held_out=9, examples=1)
    assert f"- {EXAMPLES} 2001 → no, not yes" in list(lost(found))
    shown = "\n".join(table("mine", [candidate(1, held_out=16), found], 2))
    assert "| held-out corrections (20) | 25.0 % | 80.0 % (+55.0, " in shown
    assert "all old ones together (600)" in shown and "- mean 0.5: can be chosen." in shown


def test_a_paired_interval_is_narrower_than_the_shares_own() -> None:
    found = compared([True] * 50 + [False] * 50, [True] * 49 + [False] * 51)
    assert found.difference == pytest.approx(-0.01) and -0.04 <= found.low <= -0.01 <= found.high <= 0.0
