"""With `"values": "copied"` a filter's string is a part of the question, and everything else is as without it."""

import json
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.honeycomb.grammar import answer_grammar, build_grammar
from tasks.honeycomb.options import HoneycombOptions
from tests.tasks.honeycomb.grammar_tools import accepts, allowed_tokens, forced_after, matcher

COLUMNS = ("http.url", "status", "user")
WRITE = {"json": lambda query: json.dumps(query, ensure_ascii=False), "python-repr": lambda query: f'"{query!r}"'}
SURFACES = pytest.mark.parametrize("surface", WRITE)
QUESTION = 'GETs to "https://a.example/p?x=1&y=\\2" by O\'Brien & Söns from 10.0.0.7:80, 東京のエラー\tand 4712e5'


def query_with(value, op="="):
    return {"calculations": [{"op": "COUNT"}], "filters": [{"column": "user", "op": op, "value": value}]}


def takes(question, value, surface="json", op="="):
    return accepts(build_grammar(COLUMNS, surface, question), WRITE[surface](query_with(value, op)))


@SURFACES
@pytest.mark.parametrize(
    "value",
    [
        "GET",
        "https://a.example/p?x=1&y=\\2",
        "O'Brien & Söns",
        "10.0.0.7:80",
        "10.0.0.7",
        "東京",
        "\tand",
        "4712e5",
        QUESTION,
    ],
)
def test_any_part_of_the_question_between_words_is_a_value(surface, value):
    assert takes(QUESTION, value, surface)
    assert takes(QUESTION, [value, "GETs"], surface, op="in")
    assert takes(QUESTION, value, surface, op="contains")


@SURFACES
@pytest.mark.parametrize("value", ["mutation", "mutations", "crashe"])
def test_a_plural_may_lose_its_s(value, surface):
    assert takes("mutations and crashes", value, surface)


@SURFACES
@pytest.mark.parametrize("question", ["gets by route", "slow get requests", "Get /cart", "posts or GET"])
def test_an_http_method_is_written_in_upper_case(question, surface):
    assert takes(question, "GET", surface)
    assert takes(question, "POST", surface) == ("posts" in question)
    assert not takes(question, "DELETE", surface)
    assert not takes("a target", "GET", surface)


@SURFACES
@pytest.mark.parametrize("value", ["POST", "get", "rien", "4712", "10.0.0.8", "O'Brien Söns", "a.example by"])
def test_nothing_else_is_a_value(surface, value):
    assert not takes(QUESTION, value, surface)
    assert not takes(QUESTION, ["GET", value], surface, op="in")
    assert accepts(build_grammar(COLUMNS, surface), WRITE[surface](query_with(value)))


@SURFACES
@pytest.mark.parametrize("value", [503, True, -1.5])
def test_statuses_and_booleans_need_not_be_in_the_question(surface, value):
    assert takes("slow or not", value, surface) == (value != -1.5)


@SURFACES
@settings(max_examples=60)
@given(
    question=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), random=st.randoms(use_true_random=False)
)
def test_the_grammar_compiles_for_any_question_and_takes_words_of_it(surface, question, random):
    words = question.split()
    assert takes(question, random.choice(words) if words else question, surface)


def test_whatever_is_written_in_a_string_is_in_the_question():
    strings = [random_string(build_grammar(COLUMNS, "json", QUESTION), Random(seed)) for seed in range(30)]
    assert len(set(strings)) > 10
    assert all(string in QUESTION for string in strings)


def random_string(grammar, random):
    """Choose random allowed bytes from the start of a filter's string to its end; the string."""
    state = matcher(grammar)
    assert state.consume_tokens(
        list(b'{"calculations": [{"op": "COUNT"}], "filters": [{"column": "user", "op": "=", "value": "')
    )
    written = b'"'
    while True:
        token = random.choice(allowed_tokens(state))
        assert state.consume_token(token)
        written += bytes([token])
        with suppress(ValueError):
            return json.loads(written)


def test_a_value_that_can_only_go_on_in_one_way_is_forced():
    grammar = build_grammar(COLUMNS, "json", "errors of build 4712e5-aa")
    start = '{"calculations": [{"op": "COUNT"}], "filters": [{"column": "user", "op": "=", "value": "47'
    assert forced_after(grammar, start) == "12e5"


def test_the_task_file_decides():
    options = {"task": "honeycomb", "name": "m", "prompt": "columns-first", "surface": "json"}
    assert answer_grammar(HoneycombOptions(**options), "a", COLUMNS) == build_grammar(COLUMNS, "json")
    copied = HoneycombOptions(**options, values="copied")
    assert answer_grammar(copied, "a", COLUMNS) == build_grammar(COLUMNS, "json", "a")
