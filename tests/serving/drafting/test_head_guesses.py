"""The drafter with trained heads: when it asks them, and what it takes from elsewhere."""

from __future__ import annotations

from serving.types import FinishReason
from tests.serving.drafting.draft_requests import GRAMMAR, TOKENIZER, encode, make_drafter, make_request, propose


class OracleHeads:
    """Fake heads that know the next two tokens."""

    vocab_size = TOKENIZER.vocab_size

    def __init__(self, answer: str) -> None:
        self._answer = encode(answer)
        self.start = 0

    def observe(self, hidden, num_tokens: int) -> None:
        """They know the answer."""

    def guesses(self, num_tokens: int, bitmask) -> list[tuple[int, int]]:
        if not self.start <= num_tokens < self.start + 2:
            return []
        token = self._answer[num_tokens - 1]
        assert bitmask is None or bitmask[token // 32] >> token % 32 & 1
        return [(token, 250)]


def test_heads_are_asked_for_the_few_tokens_that_they_see_and_ngrams_for_others():
    drafter = make_drafter()
    for name in "abc":  # a finished answer of a request with heads is learned as well
        request = make_request("q", "xz gamma", name=name)
        request.heads = OracleHeads("")
        request.finish_reason = FinishReason.STOP
        drafter.propose(request, 1)
        drafter.finish(request)
    answer = encode("xz gamma")
    request = make_request("q", name="d")
    request.heads = OracleHeads("xz gamma")
    request.heads.start = 1
    drafts = drafter.propose(request, 30)
    assert drafts[:2] == answer[:2]
    assert drafter.sources(request, len(drafts))[:3] == ("heads", "heads", "recent")


def test_heads_are_asked_where_the_grammar_forces_nothing_and_only_for_allowed_tokens():
    drafter = make_drafter()
    written = '{"column": "'
    request = make_request("q", written, GRAMMAR)
    request.heads = OracleHeads(f"{written}name")
    request.heads.start = request.num_tokens
    assert propose(drafter, request) == 'name"}'
    assert drafter.sources(request, 2) == ("heads", "forced")
