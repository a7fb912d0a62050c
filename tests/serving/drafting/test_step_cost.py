"""The measured cost of a row follows the machine's, from few and noisy measurements."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from serving.drafting.speculative import LinearCost, MeasuredCost

PRIOR = LinearCost(0.06)


def measured(seconds: Callable[[int], float], sizes: list[int], noise: float = 0.0) -> MeasuredCost:
    chance = random.Random(0)
    cost = MeasuredCost(PRIOR)
    for rows in sizes:
        cost.add(rows=rows, seconds=seconds(rows) * (1 + noise * chance.random()))
    return cost


def test_before_any_measurement_the_prior_counts():
    assert MeasuredCost(PRIOR).of_one_row(5) == PRIOR.of_one_row(5)


def test_steps_of_one_size_say_nothing_about_rows_so_the_prior_still_counts():
    assert measured(lambda rows: 0.03, [8] * 50).of_one_row(8) == pytest.approx(PRIOR.of_one_row(8), rel=0.2)


@pytest.mark.parametrize("row_cost", [0.01, 0.06, 0.3])
def test_a_linear_cost_is_found_within_a_third_despite_noise(row_cost: float):
    sizes = random.Random(1).choices([1, 4, 9, 12, 17, 20, 33], k=400)
    cost = measured(lambda rows: 0.02 * (1 + row_cost * rows), sizes, noise=0.1)
    for rows in (4, 12, 30):
        assert cost.of_one_row(rows) == pytest.approx(LinearCost(row_cost).of_one_row(rows), rel=0.35)


def test_free_rows_still_cost_the_time_to_find_drafts():
    cost = measured(lambda rows: 0.01, [1, 8, 16, 40] * 30)
    assert 0 < cost.of_one_row(8) < PRIOR.of_one_row(8) / 5


def test_where_steps_get_dearer_the_cost_nearby_counts():
    """Up to 16 rows a step takes the same time, from there on in proportion: two kinds of kernels."""
    cost = measured(lambda rows: 0.01 * max(1.0, rows / 16), [1, 4, 8, 12, 32, 64, 128, 192] * 30)
    assert cost.of_one_row(150) * 150 > 0.7
    assert cost.of_one_row(3) * 3 < 0.25


def test_a_row_never_costs_more_than_its_part_of_the_step():
    cost = measured(lambda rows: rows**3 * 0.001, [2, 4, 8] * 30)
    assert cost.of_one_row(8) <= 1 / 8


def test_a_step_that_was_interrupted_hardly_counts():
    steps = [1, 9, 17, 33] * 20
    cost = measured(lambda rows: 0.02 * (1 + 0.06 * rows), steps)
    before = cost.of_one_row(12)
    cost.add(rows=17, seconds=20.0)
    assert cost.of_one_row(12) == pytest.approx(before, rel=0.3)


def test_the_slope_stays_known_while_all_steps_have_one_size():
    cost = measured(lambda rows: 0.02 * (1 + 0.3 * rows), [*[1, 8, 32] * 30, *[32] * 2000])
    assert cost.of_one_row(32) == pytest.approx(LinearCost(0.3).of_one_row(32), rel=0.2)
