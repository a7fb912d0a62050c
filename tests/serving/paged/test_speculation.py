"""The drafter: where its guesses come from, what it asks of them, and that it leaves no trace."""

from __future__ import annotations

import json

import pytest

from serving.errors import GrammarError
from serving.ngrams import NgramTable
from serving.paged.grammar import GrammarCompiler
from serving.paged.request import Request
from serving.paged.speculation import SpeculativeDrafter
from serving.paged.trust import Trust
from serving.types import FinishReason, GenerationRequest
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
GRAMMARS = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)
GRAMMAR = 'start: "{\\"column\\": \\"" NAME "\\"}"\nNAME: "duration" | "durable" | "name"\n'


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


def make_request(prompt: str, written: str = "", grammar: str | None = None, name: str = "r") -> Request:
    state = None if grammar is None else GRAMMARS.compile(grammar)
    request = Request(GenerationRequest(name, tuple(encode(prompt))), seed=0, grammar=state)
    request.token_ids += encode(written)
    if state is not None:
        assert state.accept(encode(written)) == len(encode(written))
    return request


def make_drafter(texts: list[str] | None = None, row_cost: float = 0.0) -> SpeculativeDrafter:
    table = None if texts is None else NgramTable.build([encode(text) for text in texts])
    drafter = SpeculativeDrafter(table, row_cost=row_cost, plain=TOKENIZER.without_space)
    drafter.begin_step(1)
    return drafter


def propose(drafter: SpeculativeDrafter, request: Request, most: int = 30) -> str:
    return TOKENIZER.decode(drafter.propose(request, most))


def test_what_the_grammar_forces_is_proposed_whole():
    assert propose(make_drafter(), make_request("x", grammar=GRAMMAR)).startswith('{"column": "')
    assert propose(make_drafter(), make_request("x", '{"column": "n', GRAMMAR)) == 'ame"}'


def test_the_prompt_is_copied_also_into_quotes():
    request = make_request("where is the strawberry field", 'the "straw')
    assert propose(make_drafter(), request).startswith("berry field")


def test_a_word_is_copied_with_its_space_in_text_and_without_where_that_proved_right():
    (spaced,), first, last = encode(" the"), encode("q")[0], encode("z")[0]
    plain = TOKENIZER.without_space(spaced)
    assert plain != spaced
    drafter = make_drafter()
    request = Request(GenerationRequest("r", (first, spaced, last)), seed=0)
    request.token_ids.append(first)
    assert drafter.propose(request, 1) == [spaced]
    for _ in range(20):  # the model does not take it, and takes the other
        drafter.propose(request, 1)
        drafter.observe(request, num_drafts=1, num_accepted=0)
    assert drafter.propose(request, 1) == [plain]


def test_a_sure_guess_that_the_grammar_refuses_leaves_room_for_others():
    drafter = make_drafter(['{"column": "zzz"}'] * 20 + ['{"column": "durable"}'])
    for i in range(40):  # what the table says proves right
        free = make_request("q", name=str(i))
        drafter.observe(free, num_drafts=len(drafter.propose(free, 30)), num_accepted=30)
    assert drafter._trust.of(("table", 9)) > 0.95
    request = make_request("q", '{"column": "', GRAMMAR)
    assert propose(drafter, request).startswith("d")


def test_the_table_of_answers_is_followed():
    drafter = make_drafter(["alpha beta gamma"] * 3)
    assert propose(drafter, make_request("zzz")).startswith("alpha beta gamma")


class KnowingModel:
    """Stands for a draft model: it knows the answer, and how sure it is."""

    def __init__(self, answer: str, share: int) -> None:
        self._answer, self._share = encode(answer), share

    vocab_size = TOKENIZER.vocab_size

    def begin(self, prompt: list[int]) -> KnowingModel:
        return self

    def guesses(self, answer: list[int]) -> list[tuple[int, int]]:
        return self.write(answer, 1, 0)

    def write(self, answer: list[int], most: int, sure: int) -> list[tuple[int, int]]:
        tokens = self._answer[len(answer) : len(answer) + most]
        return [(token, self._share) for token in tokens if self._share >= sure]

    def pause(self) -> None:
        """It is not asked by turns."""


@pytest.mark.parametrize(("share", "followed"), [(250, True), (20, False)])
def test_a_draft_model_is_followed_as_far_as_it_is_sure(share: int, followed: bool):
    model = KnowingModel("time 86", share)
    drafter = SpeculativeDrafter(None, model, row_cost=0.06, plain=TOKENIZER.without_space)
    drafter.begin_step(1)
    assert (propose(drafter, make_request("the day")) == "time 86") is followed


def test_of_what_a_draft_model_is_sure_of_the_grammar_takes_the_first_tokens_and_drafts_go_on():
    class Sure(KnowingModel):
        def guesses_among(self, allowed) -> list[tuple[int, int]]:
            return []

    written = '{"column": "n'
    model = Sure(written, 250)
    model._answer += [*encode("a"), *encode("zz")]
    drafter = SpeculativeDrafter(None, model, row_cost=0.06, plain=TOKENIZER.without_space)
    drafter.begin_step(1)
    request = make_request("q", written, GRAMMAR)
    drafts = drafter.propose(request, 30)
    assert TOKENIZER.decode(drafts) == 'ame"}'
    assert drafts[:1] == encode("a")
    sources = drafter._followers[request.request_id].proposed
    assert [kind for kind, _ in sources] == ["model", *["forced"] * (len(drafts) - 1)]
    assert request.grammar.accept(encode('ame"}')) == len(encode('ame"}'))
    drafter.observe(request, num_drafts=len(drafts), num_accepted=len(drafts))
    assert drafter._trust._counts[sources[0]] == (1.0, 1.0)


def test_a_run_that_a_draft_model_is_sure_of_ends_where_it_is_not_worth_its_rows():
    model = KnowingModel("a b c d e f g h i j k l m n o p", 235)
    drafter = SpeculativeDrafter(None, model, row_cost=0.3, plain=TOKENIZER.without_space)
    drafter.begin_step(1)
    request = make_request("q")
    drafts = drafter.propose(request, 30)
    assert 0 < len(drafts) < len(encode("a b c d e f g h i j k l m n o p"))
    for _ in range(100):  # it proves right
        drafter.observe(request, num_drafts=len(drafts), num_accepted=len(drafts))
        drafter.begin_step(1)
        more = drafter.propose(request, 30)
    assert len(more) > len(drafts)


def test_an_unsure_draft_model_chooses_among_what_the_grammar_allows():
    class Unsure(KnowingModel):
        def guesses_among(self, allowed) -> list[tuple[int, int]]:
            (first,) = encode("d")
            assert allowed[first // 32] >> first % 32 & 1
            assert not allowed[0] & 1
            return [(first, 250)]

    written = '{"column": "'
    for share in (100, 250):  # what it is sure of, the grammar refuses
        drafter = SpeculativeDrafter(
            None, Unsure(f"{written}zzz", share), row_cost=0.06, plain=TOKENIZER.without_space
        )
        drafter.begin_step(1)
        request = make_request("q", written, GRAMMAR)
        assert propose(drafter, request, 1) == "d"
        assert request.grammar.accept(encode("name")) == len(encode("name"))


def test_a_draft_model_takes_the_place_of_the_table_but_not_for_adapters_or_prompts_it_does_not_read():
    class Choosy(KnowingModel):
        def begin(self, prompt: list[int]) -> KnowingModel | None:
            return self if prompt == encode("mine") else None

    table = NgramTable.build([encode("alpha beta")] * 3)
    drafter = SpeculativeDrafter(
        table, Choosy("gamma delta", 250), row_cost=0.0, plain=TOKENIZER.without_space
    )
    assert propose(drafter, make_request("mine", name="a")).startswith("gamma delta")
    assert propose(drafter, make_request("zzz", name="b")).startswith("alpha beta")
    adapted = make_request("mine", name="c")
    adapted.adapter = "another"
    assert propose(drafter, adapted).startswith("alpha beta")


def test_a_finished_answer_is_remembered_for_its_adapter_only_and_half_an_answer_never():
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


def test_guesses_obey_the_grammar_and_leave_it_where_it_was():
    drafter = make_drafter(['{"column": "status"}', '{"column": "durable"}'] * 3)
    request = make_request("status durable", grammar=GRAMMAR)
    before = request.grammar.forced_tokens()
    text = propose(drafter, request)
    assert json.loads(text) == {"column": "durable"}
    assert request.grammar.forced_tokens() == before
    assert request.grammar.accept(encode('{"column": "name"}')) == len(encode('{"column": "name"}'))


@pytest.mark.parametrize("method", ["accept", "rollback", "fill_bitmask"])
def test_a_grammar_that_gives_up_ends_the_drafts_and_nothing_else(method, monkeypatch):
    def give_up(*_):
        raise GrammarError("too many states")

    class Unsure(KnowingModel):
        def guesses_among(self, allowed) -> list[tuple[int, int]]:
            return []

    drafter = SpeculativeDrafter(None, Unsure("z q" * 20, 100), row_cost=0.0, plain=TOKENIZER.without_space)
    request = make_request("q", "", GRAMMAR)
    fine = make_request("q", '{"column": "n', GRAMMAR, name="fine")
    with monkeypatch.context() as patch:
        patch.setattr(request.grammar, method, give_up)
        assert drafter.propose(request, 50) == []
    assert propose(drafter, fine) == 'ame"}'
    drafter.observe(request, num_drafts=0, num_accepted=0)
    drafter.finish(request)


def test_never_more_than_asked_for():
    for most in range(1, 8):
        assert len(make_drafter(["alpha beta gamma"] * 3).propose(make_request("zzz"), most)) <= most


def test_a_dearer_row_and_a_larger_batch_want_surer_guesses():
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


def test_trust_follows_what_happens_and_forgets():
    trust = Trust()
    for _ in range(2000):
        trust.add(("own", 2), True)
    assert trust.of(("own", 2)) > 0.95
    for _ in range(2000):
        trust.add(("own", 2), False)
    assert trust.of(("own", 2)) < 0.05


def test_a_preempted_or_unknown_request_can_be_finished():
    drafter = make_drafter()
    request = make_request("zzz")
    request.finish_reason = FinishReason.ABORT
    drafter.finish(request)
    drafter.finish(request)


@pytest.mark.parametrize("num_accepted", [0, 1, 2])
def test_outcomes_beyond_the_first_wrong_guess_teach_nothing(num_accepted):
    drafter = make_drafter(["alpha beta gamma delta"] * 3)
    request = make_request("zzz")
    drafts = drafter.propose(request, 3)
    drafter.observe(request, num_drafts=len(drafts), num_accepted=num_accepted)
    seen = sum(seen for _, seen in drafter._trust._counts.values())
    assert seen == min(num_accepted + 1, len(drafts))
