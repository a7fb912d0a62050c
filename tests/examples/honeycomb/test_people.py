"""The questions of people can judge: all lines are read, both halves have all kinds, and no column list is in both."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.paths import ROOT
from tasks.honeycomb.evaluation.queries import QueryEvaluation

PEOPLE = ROOT / "examples" / "honeycomb" / "people"
HALVES = {name: PEOPLE / f"{name}.jsonl" for name in ("dev", "reported")}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("name", "least"), [("dev", 190), ("reported", 190), ("times", 100)])
def test_every_question_has_valid_accepted_queries(name: str, least: int) -> None:
    cases, refused = QueryEvaluation("json").read_cases(PEOPLE / f"{name}.jsonl")
    assert not refused
    assert len(cases) >= least


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
