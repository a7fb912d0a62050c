"""SuffixText finds the same matches as a direct search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.drafting.ngrams import SuffixText

# Few different tokens, so that there are matches; some are special in strings (surrogates, beyond 16 bits).
TOKENS = st.lists(st.sampled_from([0, 1, 2, 0xD800, 0xDC00, 70_000]), max_size=40)
ORDERS = (1, 2, 3, 5)


def normalize(token: int) -> int:
    """Treats 0 and 1 as the same word."""
    return 1 if token == 0 else token


def search(tokens: list[int]) -> list[tuple[int, int, int]]:
    """The expected result of `successors`: for each order the latest earlier occurrence, until there is none."""
    normalized, found = list(map(normalize, tokens)), []
    for order in ORDERS:
        places = [i for i in range(len(tokens) - order) if normalized[i : i + order] == normalized[-order:]]
        if len(tokens) <= order or not places:
            break
        next_one = places[-1] + order
        found.append((tokens[next_one], normalized[next_one], order))
    return found


@given(TOKENS, TOKENS)
def test_the_latest_earlier_occurrence_is_found(first, second):
    text = SuffixText()
    text.extend(first, normalize)
    text.extend(second, normalize)
    assert len(text) == len(first + second)
    assert list(text.successors(ORDERS)) == search(first + second)


@given(TOKENS, TOKENS, TOKENS)
def test_truncated_tokens_have_no_effect(kept, cut, added):
    text = SuffixText()
    text.extend(kept + cut, normalize)
    text.truncate(len(kept))
    text.extend(added, normalize)
    assert list(text.successors(ORDERS)) == search(kept + added)
