"""The GBNF grammar of the peer accepts the same texts as ours, checked with llguidance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from lab.bench.gbnf import UnsupportedSurfaceError, build_gbnf
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.query import read_answer
from tests.tasks.honeycomb.grammar_tools import accepts

REFERENCES = Path(__file__).parents[2] / "tasks" / "honeycomb" / "references.jsonl"
COLUMNS = ("name", "duration_ms", 'a "quoted"\\ name', "größe")
COUNT = '"calculations": [{"op": "COUNT"}]'


def as_llguidance(columns: tuple[str, ...] = COLUMNS) -> str:
    return LLMatcher.grammar_from_lark(any_to_lark(build_gbnf(columns, "json")))


@pytest.fixture(scope="module")
def grammar() -> str:
    return as_llguidance()


def test_every_reference_answer_in_canonical_form_is_accepted() -> None:
    for line in REFERENCES.read_text("utf-8").splitlines():
        record = json.loads(line)
        columns = parse_columns(record["cols"])
        assert accepts(as_llguidance(columns), read_answer(record["query"], columns).text), record["query"]


@pytest.mark.parametrize(
    "text",
    [
        f"{{{COUNT}}}",
        '{"calculations": [{"op": "P99", "column": "a \\"quoted\\"\\\\ name"}]}',
        '{"breakdowns": ["größe", "name"], ' + COUNT + "}",
        f'{{{COUNT}, "filters": [{{"column": "name", "op": "in", "value": ["a", 1.5, true]}}]}}',
        f'{{{COUNT}, "filters": [{{"column": "name", "op": "exists"}}], "filter_combination": "OR"}}',
        f'{{{COUNT}, "orders": [{{"op": "COUNT", "order": "descending"}}], "limit": 1000}}',
        f'{{{COUNT}, "havings": [{{"calculate_op": "COUNT", "op": ">", "value": -3}}], "time_range": 60}}',
    ],
)
def test_canonical_queries_are_accepted(grammar: str, text: str) -> None:
    assert accepts(grammar, text)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"breakdowns": ["nam"]}',
        f'{{{COUNT}, "breakdowns": ["name"]}}',  # not the canonical order
        f"{{{COUNT}, {COUNT}}}",
        '{"calculations": [{"op": "COUNT", "column": "name"}]}',
        '{"calculations": [{"op": "P99"}]}',
        '{"calculations": []}',
        f'{{{COUNT}, "filters": [{{"column": "name", "op": "exists", "value": 1}}]}}',
        f'{{{COUNT}, "filters": [{{"column": "name", "op": "contains", "value": 1}}]}}',
        f'{{{COUNT}, "orders": [{{"op": "HEATMAP", "column": "name", "order": "ascending"}}]}}',
        f'{{{COUNT}, "limit": 1001}}',
        f'{{{COUNT}, "time_range": 0}}',
        f'{{{COUNT},"time_range": 60}}',
    ],
)
def test_what_our_grammar_refuses_is_refused(grammar: str, text: str) -> None:
    assert not accepts(grammar, text)


def test_other_surfaces_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSurfaceError, match="python-repr"):
        build_gbnf(COLUMNS, "python-repr")
