"""The drafter's view of vLLM's batch: tokens, grammars, accepted drafts and ends; needs no vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serving.constraints import LarkConstraint
from serving.drafting.drafter import Drafter, DraftRequest, Grammar
from serving.drafting.speculative import LinearCost, MeasuredCost, SpeculativeDrafter
from serving.engines.vllm.batch_drafts import BatchDrafts, DraftRow
from serving.errors import GrammarError
from serving.grammar.compiler import GrammarCompiler
from serving.types import FinishReason
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
END = TOKENIZER.eos_token_ids[0]
GRAMMARS = GrammarCompiler(TOKENIZER, vocab_size=TOKENIZER.vocab_size)
GRAMMAR = 'start: "{\\"column\\": \\"" NAME "\\"}"\nNAME: "duration" | "name"\n'
PROMPT = TOKENIZER.encode("which column", add_bos=False)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


class Scripted(Drafter):
    """Proposes the same tokens always, and keeps what it is told."""

    def __init__(self, drafts: Sequence[int] = ()) -> None:
        self.drafts = list(drafts)
        self.seen: list[tuple[str, list[int], bool]] = []
        self.observed: list[tuple[int, int]] = []
        self.finished: list[tuple[str, list[int], FinishReason | None]] = []
        self.steps: list[int] = []

    def begin_step(self, num_requests: int) -> None:
        self.steps.append(num_requests)

    def propose(self, request: DraftRequest, max_tokens: int) -> list[int]:
        self.seen.append((request.request_id, list(request.output_token_ids), request.grammar is not None))
        return self.drafts

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        self.observed.append((num_drafts, num_accepted))

    def finish(self, request: DraftRequest) -> None:
        self.finished.append((request.request_id, list(request.output_token_ids), request.finish_reason))


def compiled(text: str) -> Grammar | None:
    return GRAMMARS.compile(LarkConstraint(text))


def batch(drafter: Drafter | SpeculativeDrafter, begin_grammar=compiled, cost: MeasuredCost | None = None):
    cost = cost or MeasuredCost(LinearCost(0.06))
    limits = {"cost": cost, "vocab_size": TOKENIZER.vocab_size}
    return BatchDrafts(drafter, begin_grammar=begin_grammar, load_model=pytest.fail, **limits)


def row(
    output: list[int], *, num_new: int = 1, name: str = "a", grammar: str | None = None, limit: int = 9
) -> DraftRow:
    return DraftRow(name, PROMPT, output, num_new, {END}, grammar, None, limit)


def step(drafts: BatchDrafts, *rows: DraftRow | None, verified: dict[str, list[int]] | None = None, running=("a", "b")):
    return drafts.propose(rows, verified=verified or {}, running=set(running))


def test_the_grammar_s_forced_tokens_are_drafted_and_its_state_follows_the_output() -> None:
    drafts = batch(SpeculativeDrafter(None, cost=LinearCost(0.01), without_space=TOKENIZER.without_space))
    written = encode('{"column": "n')
    (found,) = step(drafts, row(written[:1], grammar=GRAMMAR, limit=50))
    assert TOKENIZER.decode([written[0], *found]).startswith('{"column": "')
    (found,) = step(drafts, row(written, num_new=3, grammar=GRAMMAR, limit=50), verified={"a": found})
    assert TOKENIZER.decode(found) == 'ame"}'


def test_the_number_of_accepted_drafts_is_reported_of_those_that_were_verified() -> None:
    drafter = Scripted([5, 6, 7, 8])
    drafts = batch(drafter)
    step(drafts, row([1]))
    step(drafts, row([1, 5, 6, 9], num_new=3), verified={"a": [5, 6, 7, 8]})
    step(drafts, row([1, 5, 6, 9, 5, 3], num_new=2), verified={"a": [5, 6]})  # vLLM cut two
    assert drafter.observed == [(4, 2), (2, 1)]


def test_drafts_that_were_not_verified_say_nothing_about_trust() -> None:
    """A preempted request computes its prompt again, and its drafts are dropped."""
    drafter = Scripted([5, 6])
    drafts = batch(drafter)
    step(drafts, row([1]))
    step(drafts, None)
    step(drafts, row([1, 4]))
    assert drafter.observed == [(0, 0)]


def test_drafts_that_the_engine_put_in_place_of_ours_are_not_learnt() -> None:
    """Near the limit of the context vLLM drafts token 0 for all, and it fills cached prompts with placeholders."""
    for others in ([0, 0, 0], [-1, -1, -1], [5, 6, 7, 8]):
        drafter = Scripted([5, 6, 9])
        drafts = batch(drafter)
        step(drafts, row([1]))
        step(drafts, row([1, 4]), verified={"a": others})
        assert drafter.observed == []
        step(drafts, row([1, 4, 5, 2], num_new=2), verified={"a": [5, 6, 9]})
        assert drafter.observed == [(3, 1)], "the next ones count again"


def test_no_draft_passes_the_limit_the_vocabulary_or_the_end_of_the_answer() -> None:
    assert step(batch(Scripted([5, 6, 7])), row([1], limit=2)) == [[5, 6]]
    assert step(batch(Scripted([5, END, 7])), row([1])) == [[5]]
    assert step(batch(Scripted([5, TOKENIZER.vocab_size, 7])), row([1])) == [[5]]
    assert step(batch(Scripted([5])), row([1], limit=0)) == [[]]
    assert step(batch(Scripted([5])), row([1], limit=-3)) == [[]]


def test_a_request_in_the_middle_of_its_prompt_gets_none_and_does_not_count() -> None:
    drafter = Scripted([5])
    assert step(batch(drafter), None, row([1], name="b")) == [[], [5]]
    assert drafter.steps == [1]


def test_steps_without_any_draft_and_of_prompts_only_are_harmless() -> None:
    cost = MeasuredCost(LinearCost(0.06))
    drafts = batch(SpeculativeDrafter(None, cost=cost, without_space=TOKENIZER.without_space), cost=cost)
    assert step(drafts, None) == [[]]
    drafts.add_step(rows=1, seconds=0.01)
    assert step(drafts, row([1], limit=0), None) == [[], []]
    drafts.add_step(rows=1, seconds=0.01)
    assert step(drafts) == []


def test_a_complete_answer_is_learnt_without_its_end_token() -> None:
    drafter = Scripted([5])
    drafts = batch(drafter)
    step(drafts, row([1]))
    assert step(drafts, row([1, 5, END], num_new=2), verified={"a": [5]}) == [[]], "vLLM has not ended it yet"
    step(drafts, row([3], name="b"), running=("b",))
    assert drafter.finished == [("a", [1, 5], FinishReason.STOP)]


def test_an_aborted_request_is_dropped_and_not_learnt() -> None:
    drafter = Scripted([5])
    drafts = batch(drafter)
    step(drafts, row([1]), row([3], name="b"))
    step(drafts, row([3, 4], name="b"), running=("b",))
    assert drafter.finished == [("a", [1], None)]


def test_there_are_no_drafts_until_the_grammar_is_compiled() -> None:
    states = iter([None, None, compiled(GRAMMAR)])
    drafter = Scripted([5])
    drafts = batch(drafter, lambda text: next(states))
    written = encode('{"column')
    found = [step(drafts, row(written[:n], grammar=GRAMMAR)) for n in (1, 2, 3)]
    assert found == [[[]], [[]], [[5]]]
    assert drafter.seen == [("a", written[:3], True)]


def test_a_grammar_that_fails_or_does_not_fit_is_given_up_and_drafts_go_on() -> None:
    def fail(text: str) -> Grammar | None:
        raise GrammarError("too large")

    for begin, output in ((fail, encode("{")), (compiled, encode("<think>"))):
        drafter = Scripted([5])
        drafts = batch(drafter, begin)
        assert step(drafts, row(output, grammar=GRAMMAR)) == [[5]]
        assert step(drafts, row([*output, 7], grammar=GRAMMAR)) == [[5]]
        assert [has_grammar for _, _, has_grammar in drafter.seen] == [False, False]
