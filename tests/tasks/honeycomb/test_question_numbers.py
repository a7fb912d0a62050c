"""Numbers that a question can compare with, and their place in the grammar."""

from __future__ import annotations

import json

import pytest

from examples.honeycomb.datagen.written_questions import WRITTEN
from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.question_numbers import question_numbers
from tests.tasks.honeycomb.grammar_tools import accepts


@pytest.mark.parametrize(
    ("question", "has", "has_not"),
    [
        ("jobs over 20 min", [20, 1200, 1_200_000], [120_000, 2000, 21]),
        ("slower than 3/4 s", [0.75, 750], [3000, 4000]),
        ("over two and a half minutes", [150, 150_000], [250, 2500]),
        ("a minute and a half", [90, 90_000], [6000]),
        ("spent over 30 euros", [30, 3000], [310]),
        ("more than 1,500 requests", [1500], [1.5e10]),
        ("over 50k", [50, 50_000], [5000]),
        ("between 1 and 5 million", [1_000_000, 5_000_000], []),
        ("between 1 and 3 TB", [1_000_000_000_000, 3_000_000_000_000, 3 * 1024**4], []),
        ("over 80 %", [80, 0.8], [8000.5]),
        ("signal below -105 dBm", [-105, 105], [-5]),
        ("over 1m30s", [90, 90_000], [150]),
        ("balance < -$50", [-50, 50, -5000], []),
        ("hit a thirty-second timeout", [30, 30_000], [31]),
        ("twenty-five hundred ms", [2500], []),
        ("bad gateways", [502], []),
        ("user 9007199254740993", [9007199254740993], []),
        ("took 10+ minutes", [600, 600_000], []),
        ("more than twenty-five times", [25], [2500.5]),
        ("5xx or failed twice", [0, 1, 2, 500, 599], [7_000]),
    ],
)
def test_numbers_in_the_units_that_a_column_may_have(question: str, has: list[float], has_not: list[float]) -> None:
    numbers = question_numbers(question)
    assert set(has) <= set(numbers)
    assert not set(has_not) & set(numbers)
    assert list(numbers) == sorted(numbers)


def test_only_these_are_written_where_values_are_copied() -> None:
    def takes(value: float, question: str | None) -> bool:
        having = {"calculate_op": "AVG", "column": "run_ms", "op": ">", "value": value}
        query = {
            "calculations": [{"op": "AVG", "column": "run_ms"}],
            "filters": [{"column": "run_ms", "op": ">", "value": value}],
            "havings": [having],
        }
        return accepts(build_grammar(("run_ms",), "json", question), json.dumps(query))

    assert takes(1_200_000, "jobs over 20 min")
    assert not takes(120_000, "jobs over 20 min")
    assert takes(0.75, "over 3/4 s")
    assert takes(120_000, None)


def test_a_question_of_many_numbers_allows_all() -> None:
    assert question_numbers(" ".join(f"{number}.5 s" for number in range(200))) == ()


def test_letters_that_only_look_like_others_are_no_error() -> None:
    assert 0.0 in question_numbers("\u017feven minutes and 5 \u212ab")


def test_nearly_all_numbers_of_written_answers_are_found() -> None:
    compared = missed = 0
    for file in sorted(WRITTEN.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines()[1:]:
            row = json.loads(line)
            values = [clause.get("value") for key in ("filters", "havings") for clause in row["a"].get(key, ())]
            numbers = {value for value in values if isinstance(value, int | float) and not isinstance(value, bool)}
            compared += bool(numbers)
            found = question_numbers(row["q"]) if numbers else ()
            missed += bool(found) and any(float(f"{number:.15g}") not in found for number in numbers)
    assert compared > 3000
    assert missed / compared < 0.003
