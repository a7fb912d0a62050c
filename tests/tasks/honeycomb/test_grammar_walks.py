"""Any answer that the grammar allows is a valid query or can be repaired."""

from random import Random

import llguidance
import pytest

from tasks.honeycomb.grammar import build_grammar
from tasks.honeycomb.query import parse_query, read_answer
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS
from tests.tasks.honeycomb.grammar_tools import walk

COLUMNS = ("a", "duration_ms", "it's", 'q"x', "日本 é", "back\\slash", "P99", "x,y]", "\u200dz", "'\"")


def check(text):
    answer = read_answer(text, COLUMNS)
    assert parse_query(answer.text, COLUMNS) == answer.query
    return answer


@pytest.mark.parametrize("surface", ["json", "python-repr"])
@pytest.mark.parametrize("hurry", [0.05, 0.3, 0.6])
def test_every_walk_through_the_grammar_is_a_query(surface, hurry):
    grammar = build_grammar(COLUMNS, surface)
    answers = [check(walk(grammar, Random(seed), hurry)) for seed in range(int(100 * hurry) + 5)]
    assert len({answer.text for answer in answers}) > len(answers) // 2


@pytest.mark.weights
@NEEDS_WEIGHTS
@pytest.mark.parametrize("surface", ["json", "python-repr"])
def test_every_walk_over_a_real_vocabulary_is_a_query(surface):
    tokenizer = llguidance.LLTokenizer((WEIGHTS / "tokenizer.json").read_text("utf-8"))
    grammar = build_grammar(COLUMNS, surface)
    for seed in range(20):
        check(walk(grammar, Random(seed), 0.3, tokenizer))
