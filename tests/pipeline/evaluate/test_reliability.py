"""How often fields were right by their probability, and the map that is fitted to it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.evaluate.reliability import Fields, draw, fit, groups

SEEDS = range(20)


def random_answers(seed: int) -> list[Fields]:
    rng = random.Random(seed)
    usual = (0.0, 0.3, 0.55, 0.6, 0.95, 0.9995, 1.0)
    return [
        [(rng.choice((rng.random(), *usual)), rng.random() < 0.7) for _ in range(rng.randint(1, 6))]
        for _ in range(rng.randint(50, 120))
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_surer_field_never_gets_a_smaller_share(seed: int) -> None:
    found = fit(random_answers(seed))
    assert found is not None
    shares = [found.share(i / 100) for i in range(101)]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1
    assert 0 <= found.error <= 1 and 0 <= found.error_left <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_shares_of_all_groups_together_are_those_that_were_measured(seed: int) -> None:
    answers = random_answers(seed)
    found = fit(answers)
    assert found is not None
    assert sum(count for _, _, count in found.points) == found.fields
    right = sum(is_right for answer in answers for _, is_right in answer)
    assert sum(share * count for _, share, count in found.points) == pytest.approx(right)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_has_twenty_fields_or_more(seed: int) -> None:
    assert all(count >= 20 for _, _, count in groups([field for answer in random_answers(seed) for field in answer]))


def test_a_model_that_is_too_sure_is_corrected() -> None:
    rng = random.Random(0)
    probabilities = [rng.random() for _ in range(4000)]
    answers = [[(p, rng.random() < p**2)] for p in probabilities]
    found = fit(answers)
    assert found is not None
    assert found.error > 0.1 > 0.05 > found.error_left
    assert found.share(0.7) == pytest.approx(0.49, abs=0.07)


def test_few_answers_show_nothing() -> None:
    assert fit([[(0.5, True)]] * 49) is None


@pytest.mark.parametrize("is_right", [False, True])
def test_a_plot_of_answers_that_are_all_the_same_is_drawn(is_right: bool, tmp_path: Path) -> None:
    answers = [[(i / 50, is_right)] for i in range(50)]
    found = fit(answers)
    assert found is not None
    draw(tmp_path / "plot.png", answers, found)
    assert (tmp_path / "plot.png").stat().st_size > 1000
