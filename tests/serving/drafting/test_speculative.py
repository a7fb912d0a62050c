"""The drafter: the sources of its drafts, how many it proposes, and that it leaves grammars unchanged."""

from __future__ import annotations

import json

import pytest

from serving.drafting.guesses import Trust
from serving.drafting.ngrams import NgramTable
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.engines.paged.request import Request
from serving.errors import GrammarError
from serving.types import FinishReason, GenerationRequest
from tests.serving.drafting.draft_requests import GRAMMAR, TOKENIZER, encode, make_drafter, make_request, propose


def test_tokens_that_the_grammar_forces_are_all_proposed():
    assert propose(make_drafter(), make_request("x", grammar=GRAMMAR)).startswith('{"column": "')
    assert propose(make_drafter(), make_request("x", '{"column": "n', GRAMMAR)) == 'ame"}'


def test_a_word_of_the_prompt_is_copied_after_a_quote_too():
    request = make_request("where is the strawberry field", 'the "straw')
    assert propose(make_drafter(), request).startswith("berry field")


def test_a_word_is_copied_with_its_space_until_the_variant_without_proves_better():
    (spaced,), first, last = encode(" the"), encode("q")[0], encode("z")[0]
    unspaced = TOKENIZER.without_space(spaced)
    assert unspaced != spaced
    drafter = make_drafter()
    request = Request(GenerationRequest("r", (first, spaced, last)), seed=0)
    request.token_ids.append(first)
    assert drafter.propose(request, 1) == [spaced]
    for _ in range(20):  # the model rejects it
        drafter.propose(request, 1)
        drafter.observe(request, num_drafts=1, num_accepted=0)
    assert drafter.propose(request, 1) == [unspaced]


def test_after_a_confident_guess_that_the_grammar_refuses_others_are_tried():
    drafter = make_drafter(['{"column": "zzz"}'] * 20 + ['{"column": "durable"}'])
    for i in range(40):  # guesses of the table are accepted
        free = make_request("q", name=str(i))
        drafter.observe(free, num_drafts=len(drafter.propose(free, 30)), num_accepted=30)
    request = make_request("q", '{"column": "', GRAMMAR)
    assert propose(drafter, request).startswith("d")


def test_the_table_of_answers_is_used():
    drafter = make_drafter(["alpha beta gamma"] * 3)
    assert propose(drafter, make_request("zzz")).startswith("alpha beta gamma")


class OracleModel:
    """A fake draft model that knows the answer, with a constant confidence."""

    def __init__(self, answer: str, confidence: int) -> None:
        self.answer, self._confidence = encode(answer), confidence

    vocab_size = TOKENIZER.vocab_size

    def begin(self, prompt: list[int]) -> OracleModel:
        return self

    def guesses(self, answer: list[int]) -> list[tuple[int, int]]:
        return self.generate(answer, 1, 0)

    def generate(self, answer: list[int], max_tokens: int, min_confidence: int) -> list[tuple[int, int]]:
        tokens = self.answer[len(answer) : len(answer) + max_tokens]
        return [(token, self._confidence) for token in tokens if self._confidence >= min_confidence]

    def invalidate(self) -> None:
        """Nothing is cached."""


@pytest.mark.parametrize(("confidence", "is_used"), [(250, True), (20, False)])
def test_a_draft_model_is_used_if_it_is_confident(confidence: int, is_used: bool):
    model = OracleModel("time 86", confidence)
    drafter = SpeculativeDrafter(None, model, cost=LinearCost(0.06), without_space=TOKENIZER.without_space)
    drafter.begin_step(1)
    assert (propose(drafter, make_request("the day")) == "time 86") is is_used


def test_the_grammar_accepts_a_prefix_of_confident_tokens_and_drafting_continues():
    class Confident(OracleModel):
        def allowed_guesses(self, allowed) -> list[tuple[int, int]]:
            return []

    written = '{"column": "n'
    model = Confident(written, 250)
    model.answer += [*encode("a"), *encode("zz")]
    drafter = SpeculativeDrafter(None, model, cost=LinearCost(0.06), without_space=TOKENIZER.without_space)
    drafter.begin_step(1)
    request = make_request("q", written, GRAMMAR)
    drafts = drafter.propose(request, 30)
    assert TOKENIZER.decode(drafts) == 'ame"}'
    assert drafts[:1] == encode("a")
    assert drafter.sources(request, len(drafts)) == ("model", *["forced"] * (len(drafts) - 1))
    assert drafter.sources(request, 1) == ("model",)
    assert request.grammar.accept(encode('ame"}')) == len(encode('ame"}'))


def test_confident_tokens_end_where_their_rows_cost_more_than_they_save():
    model = OracleModel("a b c d e f g h i j k l m n o p", 235)
    drafter = SpeculativeDrafter(None, model, cost=LinearCost(0.3), without_space=TOKENIZER.without_space)
    drafter.begin_step(1)
    request = make_request("q")
    drafts = drafter.propose(request, 30)
    assert 0 < len(drafts) < len(encode("a b c d e f g h i j k l m n o p"))
    for _ in range(100):  # all are accepted
        drafter.observe(request, num_drafts=len(drafts), num_accepted=len(drafts))
        drafter.begin_step(1)
        more = drafter.propose(request, 30)
    assert len(more) > len(drafts)


def test_an_unconfident_draft_model_chooses_among_the_tokens_that_the_grammar_allows():
    class Unconfident(OracleModel):
        def allowed_guesses(self, allowed) -> list[tuple[int, int]]:
            (first,) = encode("d")
            assert allowed[first // 32] >> first % 32 & 1
            assert not allowed[0] & 1
            return [(first, 250)]

    written = '{"column": "'
    for confidence in (100, 250):  # the grammar refuses the confident tokens
        drafter = SpeculativeDrafter(
            None, Unconfident(f"{written}zzz", confidence), cost=LinearCost(0.06), without_space=TOKENIZER.without_space
        )
        drafter.begin_step(1)
        request = make_request("q", written, GRAMMAR)
        assert propose(drafter, request, 1) == "d"
        assert request.grammar.accept(encode("name")) == len(encode("name"))


@pytest.mark.parametrize("confidence", [250, 128, 20])
def test_a_draft_model_of_another_task_costs_no_passes_once_that_is_known(confidence: int):
    """The n-grams of recent answers draft beside it, and it loses the trust that it had at first."""

    class Wrong(OracleModel):
        def generate(self, answer: list[int], max_tokens: int, min_confidence: int) -> list[tuple[int, int]]:
            return [(1, self._confidence)] if self._confidence >= min_confidence else []

    def passes(model: OracleModel | None) -> list[int]:
        """Of 40 equal requests, one after the other."""
        drafter = SpeculativeDrafter(None, model, cost=LinearCost(0.06), without_space=TOKENIZER.without_space)
        answer, counts = encode("one of two or more than three in a row, as ever before"), []
        for number in range(40):
            request = make_request("say it", name=str(number))
            count = 0
            while len(request.output_token_ids) < len(answer):
                drafter.begin_step(1)
                rest = answer[len(request.output_token_ids) :]
                drafts = drafter.propose(request, 128)
                accepted = next(
                    (i for i, pair in enumerate(zip(drafts, rest, strict=False)) if pair[0] != pair[1]), len(drafts)
                )
                accepted = min(accepted, len(rest))
                drafter.observe(request, num_drafts=len(drafts), num_accepted=accepted)
                request.token_ids += rest[: accepted + 1]
                count += 1
            request.finish_reason = FinishReason.STOP
            drafter.finish(request)
            counts.append(count)
        return counts

    alone, beside = passes(None), passes(Wrong("", confidence))
    assert sum(beside[-20:]) <= 1.05 * sum(alone[-20:]), (alone, beside)


def test_a_draft_model_replaces_the_table_except_for_adapters_and_prompts_that_it_does_not_read():
    class Selective(OracleModel):
        def begin(self, prompt: list[int]) -> OracleModel | None:
            return self if prompt == encode("mine") else None

    table = NgramTable.build([encode("alpha beta")] * 3)
    drafter = SpeculativeDrafter(
        table,
        Selective("gamma delta", 250),
        cost=LinearCost(0.0),
        without_space=TOKENIZER.without_space,
    )
    assert propose(drafter, make_request("mine", name="a")).startswith("gamma delta")
    assert propose(drafter, make_request("zzz", name="b")).startswith("alpha beta")
    adapted = make_request("mine", name="c")
    adapted.adapter = "another"
    assert propose(drafter, adapted).startswith("alpha beta")
    with_its_own = make_request("mine", name="d")
    with_its_own.adapter, with_its_own.draft_model = "own", Selective("delta gamma", 250)
    assert propose(drafter, with_its_own).startswith("delta gamma")


def test_a_finished_answer_is_learned_for_its_adapter_only_and_an_aborted_one_never():
    drafter = make_drafter()
    for name, reason in (("whole", FinishReason.STOP), ("half", FinishReason.ABORT)):
        request = make_request("zzz", f"{name} answer {name}", name=name)
        request.finish_reason = reason
        propose(drafter, request)
        drafter.finish(request)
    assert "answer whole" in propose(drafter, make_request("zzz", "whole", name="a"))
    assert "answer half" not in propose(drafter, make_request("zzz", "half", name="b"))
    other = make_request("zzz", "whole", name="c")
    other.adapter = "another"
    assert "answer whole" not in propose(drafter, other)


def test_drafts_obey_the_grammar_and_leave_it_unchanged():
    drafter = make_drafter(['{"column": "status"}', '{"column": "durable"}'] * 3)
    request = make_request("status durable", grammar=GRAMMAR)
    before = request.grammar.forced_tokens()
    text = propose(drafter, request)
    assert json.loads(text) == {"column": "durable"}
    assert request.grammar.forced_tokens() == before
    assert request.grammar.accept(encode('{"column": "name"}')) == len(encode('{"column": "name"}'))


@pytest.mark.parametrize("method", ["accept", "rollback", "fill_bitmask"])
def test_a_grammar_error_ends_only_the_drafts(method, monkeypatch):
    def fail(*_):
        raise GrammarError("too many states")

    class Unconfident(OracleModel):
        def allowed_guesses(self, allowed) -> list[tuple[int, int]]:
            return []

    drafter = SpeculativeDrafter(
        None, Unconfident("z q" * 20, 100), cost=LinearCost(0.0), without_space=TOKENIZER.without_space
    )
    request = make_request("q", "", GRAMMAR)
    fine = make_request("q", '{"column": "n', GRAMMAR, name="fine")
    with monkeypatch.context() as patch:
        patch.setattr(request.grammar, method, fail)
        assert drafter.propose(request, 50) == []
    assert propose(drafter, fine) == 'ame"}'
    drafter.observe(request, num_drafts=0, num_accepted=0)
    drafter.finish(request)


def test_there_are_never_more_drafts_than_the_limit():
    for max_tokens in range(1, 8):
        assert len(make_drafter(["alpha beta gamma"] * 3).propose(make_request("zzz"), max_tokens)) <= max_tokens


def test_drafts_are_shorter_with_a_higher_row_cost_or_a_larger_batch():
    texts = ["a b c d e f"] * 3 + ["a b x y z"] * 2
    lengths = []
    for row_cost, num_requests in ((0.0, 1), (0.06, 1), (0.06, 32), (3.0, 32)):
        drafter = make_drafter(texts, row_cost)
        drafter.begin_step(num_requests)
        lengths.append(len(drafter.propose(make_request("zzz", "a b"), 20)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_falling_acceptance_shortens_drafts():
    drafter = make_drafter(["a b c d e f g h"] * 3, row_cost=0.06)
    request = make_request("zzz", "a")
    first = len(drafter.propose(request, 20))
    for _ in range(200):
        drafter.begin_step(1)
        drafts = drafter.propose(request, 20)
        if not drafts:
            break
        drafter.observe(request, num_drafts=len(drafts), num_accepted=0)
    assert len(drafter.propose(request, 20)) < first


def test_acceptance_estimates_follow_recent_outcomes():
    trust = Trust()
    for _ in range(2000):
        trust.add(("context", 2), True)
    assert trust.probability(("context", 2)) > 0.95
    for _ in range(2000):
        trust.add(("context", 2), False)
    assert trust.probability(("context", 2)) < 0.05


def test_a_preempted_or_unknown_request_can_be_finished():
    drafter = make_drafter()
    request = make_request("zzz")
    request.finish_reason = FinishReason.ABORT
    drafter.finish(request)
    drafter.finish(request)


@pytest.mark.parametrize(("num_accepted", "is_trusted"), [(0, True), (1, False)])
def test_drafts_after_the_first_rejected_one_do_not_count(num_accepted, is_trusted):
    """The first draft is the table's; the second copies a word with its space until that has been rejected often."""
    (spaced,), first, last = encode(" the"), encode("q")[0], encode("z")[0]
    drafter = make_drafter(["q"] * 3)
    request = Request(GenerationRequest("r", (first, spaced, last)), seed=0)
    assert drafter.propose(request, 2) == [first, spaced]
    for _ in range(20):
        drafter.propose(request, 2)
        drafter.observe(request, num_drafts=2, num_accepted=num_accepted)
    assert drafter.propose(request, 2) == [first, spaced if is_trusted else TOKENIZER.without_space(spaced)]
