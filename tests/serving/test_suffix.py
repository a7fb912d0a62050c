"""A text that is searched for its own suffixes, against the plainest possible search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.suffix import SuffixText

# Few tokens, so that there are matches; some where strings have their traps (surrogates, beyond 16 bits).
TOKENS = st.lists(st.sampled_from([0, 1, 2, 0xD800, 0xDC00, 70_000]), max_size=40)
ORDERS = (1, 2, 3, 5)


def twin(token: int) -> int:
    """0 and 1 are the same word."""
    return 1 if token == 0 else token


def search(tokens: list[int]) -> list[tuple[int, int, int]]:
    """What `successors` is to find: for each order the last earlier place, until there is none."""
    twins, found = list(map(twin, tokens)), []
    for order in ORDERS:
        places = [i for i in range(len(tokens) - order) if twins[i : i + order] == twins[-order:]]
        if len(tokens) <= order or not places:
            break
        next_one = places[-1] + order
        found.append((tokens[next_one], twins[next_one], order))
    return found


@given(TOKENS, TOKENS)
def test_the_last_earlier_place_is_found(first, second):
    text = SuffixText()
    text.extend(first, twin)
    text.extend(second, twin)
    assert len(text) == len(first + second)
    assert list(text.successors(ORDERS)) == search(first + second)


@given(TOKENS, TOKENS, TOKENS)
def test_what_was_added_and_cut_leaves_no_trace(kept, cut, added):
    text = SuffixText()
    text.extend(kept + cut, twin)
    text.cut(len(kept))
    text.extend(added, twin)
    assert list(text.successors(ORDERS)) == search(kept + added)
