"""The questions of people can judge: all lines are read, both halves have all kinds, and no column list is in both."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.paths import ROOT
from tasks.honeycomb.evaluation.queries import QueryEvaluation
from tasks.honeycomb.grammar import build_grammar
from tests.tasks.honeycomb.grammar_tools import accepts

PEOPLE = ROOT / "examples" / "honeycomb" / "people"
HALVES = {name: PEOPLE / f"{name}.jsonl" for name in ("dev", "reported")}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("name", "least"),
    [("dev", 190), ("reported", 190), ("times", 100), ("families", 100), ("families-2", 200), ("families-3", 120)],
)
def test_every_question_has_valid_accepted_queries(name: str, least: int) -> None:
    cases, refused = QueryEvaluation("json").read_cases(PEOPLE / f"{name}.jsonl")
    assert not refused
    assert len(cases) >= least


def test_corrections_are_answers_that_the_model_may_write_and_no_test_question() -> None:
    path = PEOPLE.parent / "corrections.jsonl"
    cases, refused = QueryEvaluation("json").read_cases(path)
    assert not refused
    assert len(cases) == 120
    corrected = {(record["input"]["nlq"], record["input"]["cols"]) for record in records(path)}
    assert not corrected & {
        (record["nlq"], json.dumps(record["cols"]))
        for name in ("families", "families-2", "families-3")
        for record in records(PEOPLE / f"{name}.jsonl")
    }
    for record in records(path):
        columns = tuple(json.loads(record["input"]["cols"]))
        assert accepts(build_grammar(columns, "json", record["input"]["nlq"]), record["output"]), record


def test_halves_share_no_list_of_columns_and_no_question() -> None:
    dev, reported = (records(path) for path in HALVES.values())
    for key in ("id", "list", "nlq"):
        assert not {r[key] for r in dev} & {r[key] for r in reported}
    assert min(len({r["list"] for r in half}) for half in (dev, reported)) >= 20


def test_halves_have_about_as_many_of_each_kind() -> None:
    dev, reported = (Counter(r["category"] for r in records(path)) for path in HALVES.values())
    assert dev.keys() == reported.keys()
    assert len(dev) == 12
    for kind in dev:
        assert min(dev[kind], reported[kind]) >= 13
        assert abs(dev[kind] - reported[kind]) <= 3
