"""The grammar accepts every valid answer with its keys in any order, and refuses every other text."""

import itertools
import json
import time
from pathlib import Path
from typing import get_args

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import InputError
from tasks.honeycomb import ops
from tasks.honeycomb.canonical import canonical_json
from tasks.honeycomb.columns import parse_columns
from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.query import parse_query
from tests.tasks.honeycomb.grammar_tools import BYTES, accepts, forced_after, matcher
from tests.tasks.honeycomb.query_strategies import COLUMNS, queries

REFERENCES = [json.loads(line) for line in (Path(__file__).parent / "references.jsonl").read_text("utf-8").splitlines()]
WRITE = {
    "json": lambda query: json.dumps(query, ensure_ascii=False),
    "python-repr": lambda query: f'"{query!r}"',
}
GRAMMARS = {surface: build_grammar(COLUMNS, surface) for surface in WRITE}
SURFACES = pytest.mark.parametrize("surface", WRITE)


def refuses(query, surface="json"):
    return not accepts(GRAMMARS[surface], WRITE[surface](query))


@SURFACES
@pytest.mark.parametrize("reference", REFERENCES, ids=[r["nlq"][:40] for r in REFERENCES])
def test_reference_answers_are_accepted_with_their_keys_in_any_order(surface, reference):
    columns = parse_columns(reference["cols"])
    assert canonical_json(parse_query(reference["query"], columns)) == reference["query"]
    query = json.loads(reference["query"])
    grammar = build_grammar(columns, surface)
    for keys in itertools.islice(itertools.permutations(query), 24):
        assert accepts(grammar, WRITE[surface]({key: query[key] for key in keys}))
    assert accepts(grammar, WRITE[surface](dict(reversed(query.items()))))


@SURFACES
@pytest.mark.parametrize("value", [0.00012345678901234567, -1.2345678901234567e-05, 123456789012345.67, 1e15])
def test_numbers_are_accepted_as_python_writes_them(surface, value):
    filters = [{"column": COLUMNS[0], "op": ">", "value": value}]
    assert accepts(GRAMMARS[surface], WRITE[surface]({"calculations": [{"op": "COUNT"}], "filters": filters}))


@SURFACES
@settings(max_examples=60)
@given(query=queries(), random=st.randoms(use_true_random=False))
def test_any_canonical_query_is_accepted_in_any_order_of_keys(surface, query, random):
    assert accepts(GRAMMARS[surface], WRITE[surface](query))
    shuffled = dict(random.sample(sorted(query.items()), len(query)))
    assert accepts(GRAMMARS[surface], WRITE[surface](shuffled))


@SURFACES
@pytest.mark.parametrize(
    "query",
    [
        {"calculations": [{"column": "name", "op": "P99"}]},
        {"filters": [{"op": "exists", "column": "name"}]},
        {"filters": [{"op": "=", "column": "name", "value": 1}]},
        {"filters": [{"op": "in", "column": "name", "value": ["a", 1]}]},
        {"orders": [{"column": "name", "op": "P99", "order": "ascending"}]},
        {"havings": [{"column": "name", "calculate_op": "SUM", "op": ">", "value": -0.5}]},
    ],
)
def test_a_clause_may_name_its_column_or_its_op_first(surface, query):
    assert not refuses(query, surface)


def one_filter(op, *value):
    return {"filters": [{"column": "name", "op": op} | ({"value": value[0]} if value else {})]}


@SURFACES
@pytest.mark.parametrize(
    "query",
    [
        {},
        {"colour": 1},
        {"calculations": [{"op": "P42", "column": "name"}]},
        {"calculations": [{"op": "COUNT", "column": "name"}]},
        {"calculations": [{"column": "name", "op": "CONCURRENCY"}]},
        {"calculations": [{"op": "P99"}]},
        {"calculations": [{"column": "name"}]},
        {"calculations": [{"op": "P99", "column": "nam"}]},
        {"calculations": [{"op": "P99", "column": "names"}]},
        {"breakdowns": ["Name"]},
        {"breakdowns": [1]},
        {"orders": [{"op": "HEATMAP", "column": "name", "order": "ascending"}]},
        {"orders": [{"column": "name", "op": "HEATMAP", "order": "ascending"}]},
        {"orders": [{"order": "ascending"}]},
        {"havings": [{"calculate_op": "HEATMAP", "column": "name", "op": ">", "value": 1}]},
        {"havings": [{"calculate_op": "COUNT", "op": ">", "value": "1"}]},
        {"havings": [{"calculate_op": "COUNT", "op": "contains", "value": 1}]},
        one_filter("exists", "x"),
        one_filter("="),
        one_filter("=", ["x"]),
        one_filter("in", "x"),
        one_filter("in", []),
        one_filter("contains", 1),
        one_filter("=", None),
        {"filter_combination": "XOR"},
        *({"limit": n} for n in (0, -1, 1001, 9999, 1.0, True)),
        *({key: n} for key in ("time_range", "start_time", "end_time", "granularity") for n in (0, -1, True)),
        {"compare_time_offset_seconds": 3601},
        {"time_range": 1, "start_time": 1, "end_time": 1},
        {"end_time": 1, "limit": 5, "time_range": 1, "start_time": 1},
    ],
)
def test_what_breaks_a_rule_is_refused(surface, query):
    assert refuses(query, surface)


COUNT = {"op": "COUNT"}
BOUNDS = {
    "breakdowns": (20, lambda n: {"breakdowns": ["name"] * n}),
    "calculations": (20, lambda n: {"calculations": [COUNT] * n}),
    "filters": (30, lambda n: {"filters": [{"column": "name", "op": "exists"}] * n}),
    "orders": (10, lambda n: {"orders": [COUNT | {"order": "ascending"}] * n}),
    "havings": (10, lambda n: {"havings": [{"calculate_op": "COUNT", "op": "=", "value": 1}] * n}),
    "in list": (50, lambda n: one_filter("in", [1] * n)),
    "string": (256, lambda n: one_filter("=", "é" * n)),
    "escaped string": (256, lambda n: one_filter("=", "\n" * n)),
    "limit": (1000, lambda n: {"limit": n}),
    "time_range": (999_999_999, lambda n: {"time_range": n}),
    "start_time": (99_999_999_999, lambda n: {"start_time": n}),
}


@SURFACES
@pytest.mark.parametrize(("most", "query"), BOUNDS.values(), ids=BOUNDS)
def test_every_repetition_has_an_exact_bound(surface, most, query):
    assert not refuses(query(1), surface)
    assert not refuses(query(most), surface)
    assert refuses(query(most + 1), surface)


@pytest.mark.parametrize(
    "text",
    [
        '{"limit": 1, "limit": 2}',
        '{"limit": 1, "breakdowns": ["name"], "limit": 2}',
        '{"limit": 01}',
        '{"limit":1}',
        '{ "limit": 1}',
        ' {"limit": 1}',
        '{"limit": 1}\n',
        '{"limit": 1,  "time_range": 5}',
        "{'limit': 1}",
        '{"filters": [{"column": "name", "op": "=", "value": "\\ud800"}]}',
        '{"filters": [{"column": "name", "op": "=", "value": "a\nb"}]}',
        '{"filters": []}',
    ],
)
def test_json_has_one_form(text):
    assert not accepts(GRAMMARS["json"], text)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("\"{'limit': 1}\"", True),
        (" \"{'limit': 1}\"", True),
        ("\n\"{'limit': 1}\"", True),
        ("\"{'filters': [], 'limit': 1}\"", True),
        ("{'limit': 1}", False),
        ("\"{'limit': 1}", False),
        ('"{"limit": 1}"', False),
        ("\"{'limit': 1, 'limit': 1}\"", False),
        ("\"{'filters': [{'column': 'name', 'op': '=', 'value': '\\ud800'}]}\"", False),
        ("\"{'filters': [{'column': 'name', 'op': '=', 'value': true}]}\"", False),
        ("\"{'filters': [{'column': 'name', 'op': '=', 'value': '\\q'}]}\"", False),
    ],
)
def test_python_is_quoted_after_optional_space_and_may_have_empty_lists(text, good):
    assert accepts(GRAMMARS["python-repr"], text) is good


def test_all_keys_fit_one_answer_and_nothing_may_follow_them():
    query = {
        "breakdowns": ["name"],
        "calculations": [{"op": "COUNT"}],
        "filters": [{"column": "name", "op": "exists"}],
        "filter_combination": "OR",
        "orders": [{"op": "COUNT", "order": "ascending"}],
        "havings": [{"calculate_op": "COUNT", "op": ">", "value": 1}],
        "limit": 5,
        "start_time": 1,
        "end_time": 2,
        "granularity": 1,
        "compare_time_offset_seconds": 1800,
    }
    assert not refuses(query)
    assert forced_after(GRAMMARS["json"], WRITE["json"](query)[:-1]) == "}"


def test_text_without_a_choice_is_forced():
    grammar = build_grammar(("duration_ms", "name"), "json")
    assert forced_after(grammar, "") == '{"'
    assert forced_after(grammar, '{"br') == 'eakdowns": ["'
    assert forced_after(grammar, '{"breakdowns": ["d') == 'uration_ms"'
    assert forced_after(grammar, '{"calculations": [{"o') == 'p": "'
    assert forced_after(grammar, '{"calculations": [{"op": "H') == 'EATMAP", "column": "'
    assert forced_after(grammar, '{"filters": [{"c') == 'olumn": "'
    assert forced_after(grammar, '{"filters": [{"column": "name", "op": "e') == ""  # exists or ends-with
    assert forced_after(grammar, '{"filters": [{"column": "name", "op": "ex') == 'ists"}'
    assert forced_after(grammar, '{"orders": [{"op": "C') == "O"


ODD = [
    "a|b",
    "/re/i",
    "%if",
    "$(x)",
    "a.b*c+",
    "//",
    "#x",
    "{0,3}",
    "<s>",
    "<|im_end|>",
    "\u200d",
    "\U000e0001",
    "ﷺ",
]


@SURFACES
def test_no_column_name_is_read_as_grammar(surface):
    grammar = build_grammar(ODD, surface)
    for name in ODD:
        assert accepts(grammar, WRITE[surface]({"breakdowns": [name]}))
    for name in ["ab", "re", "axb*cc", "aabc", "", "x", "a", "ﷺﷺ"]:
        assert not accepts(grammar, WRITE[surface]({"breakdowns": [name]}))


@SURFACES
@settings(max_examples=50)
@given(name=st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40))
def test_any_column_name_is_accepted_exactly(surface, name):
    grammar = build_grammar([name], surface)
    assert accepts(grammar, WRITE[surface]({"breakdowns": [name]}))
    assert not accepts(grammar, WRITE[surface]({"breakdowns": [name + "x"]}))


def test_no_columns_is_an_input_error():
    with pytest.raises(InputError, match="cols"):
        build_grammar((), "json")


@SURFACES
def test_a_thousand_columns_compile_in_time(surface):
    columns = [f"service_{i % 37}.component.attribute_{i}" for i in range(1000)]
    times = []
    for _ in range(3):
        start = time.process_time()
        matcher(build_grammar(columns, surface))
        times.append(time.process_time() - start)
    assert min(times) < 0.2


def test_the_grammar_compiles_without_warnings():
    for grammar in GRAMMARS.values():
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, BYTES)
        assert (is_error, messages) == (False, [])


def test_every_keyword_is_in_the_grammar():
    for words in (ops.CALCULATION_OPS, get_args(ops.FilterOp), ops.COMBINATIONS, ops.DIRECTIONS):
        assert all(json.dumps(json.dumps(word)) in GRAMMARS["json"] for word in words)
