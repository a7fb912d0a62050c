"""The schedule depends on load, memory and drafts; the output does not."""

import pytest

from serving.types import FinishReason
from tests.serving.engines.paged.paged_fakes import (
    EOS,
    AdversarialDrafter,
    Harness,
    OracleDrafter,
    RandomDrafter,
    continue_,
    make_prompt,
    next_token,
)

PROMPTS = [make_prompt(length, salt) for length, salt in [(1, 0), (3, 1), (4, 2), (17, 3), (40, 3), (90, 4)]]


def run_all(harness: Harness, max_tokens: int = 25) -> dict[str, list[int]]:
    for i, prompt in enumerate(PROMPTS):
        harness.add(str(i), prompt, max_tokens)
    harness.run()
    return harness.outputs


EXPECTED = {str(i): continue_(prompt, 25) for i, prompt in enumerate(PROMPTS)}


def test_every_request_gets_its_own_continuation():
    assert run_all(Harness()) == EXPECTED


@pytest.mark.parametrize("max_num_seqs", [1, 2, 6])
def test_the_batch_does_not_change_the_tokens(max_num_seqs):
    assert run_all(Harness(max_num_seqs=max_num_seqs)) == EXPECTED


@pytest.mark.parametrize("budget", [1, 3, 16, 1000])
def test_chunking_does_not_change_the_tokens(budget):
    harness = Harness(max_num_batched_tokens=budget)
    assert run_all(harness) == EXPECTED
    assert max(harness.runner.num_rows) <= budget


@pytest.mark.parametrize("drafter", [OracleDrafter(), AdversarialDrafter(), RandomDrafter()])
@pytest.mark.parametrize("max_draft_tokens", [1, 4, 15])
@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_drafts_do_not_change_the_tokens(drafter, max_draft_tokens, max_num_seqs):
    harness = Harness(
        drafter=drafter,
        max_draft_tokens=max_draft_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
    )
    assert run_all(harness) == EXPECTED


class FewDrafts(OracleDrafter):
    """Proposes two drafts, even if more are allowed."""

    def propose(self, request, max_tokens):
        return super().propose(request, min(2, max_tokens))


@pytest.mark.parametrize(
    ("drafter", "max_draft_tokens", "left"),
    [(None, 0, 0), (OracleDrafter(), 20, 20), (FewDrafts(), 20, 2)],
    ids=["without drafts", "as many as may be", "two of twenty"],
)
def test_prompts_leave_decoding_requests_their_recent_number_of_drafts(drafter, max_draft_tokens, left):
    harness = Harness(drafter=drafter, max_draft_tokens=max_draft_tokens, max_num_batched_tokens=64, num_blocks=256)
    # One after the other, each long enough for the mean to settle.
    prompts = [p for p in (make_prompt(5, salt) for salt in range(60)) if len(continue_(p, 60)) == 60]
    for i, prompt in enumerate(prompts[:8]):
        harness.add(f"before-{i}", prompt, 60)
        harness.run()
    decoding = harness.add("decoding", prompts[8], 60)
    harness.step()
    assert decoding.num_tokens - decoding.num_computed_tokens == 1
    for number in range(3):
        harness.add(f"prompt-{number}", make_prompt(60, 7 + number), 5)
    chunks = sum(item.num_tokens for item in harness.step().scheduled if item.request is not decoding)
    assert 0 <= chunks - (64 - 1 - left) <= 1  # answers end with fewer drafts


def test_accepted_drafts_save_passes_and_are_counted():
    plain, drafted = Harness(), Harness(drafter=OracleDrafter(), max_draft_tokens=7)
    prompt = next(p for p in PROMPTS if len(continue_(p, 24)) == 24)
    requests = [harness.add("a", prompt, 24) for harness in (plain, drafted)]
    plain.run()
    drafted.run()
    assert requests[0].model_passes == plain.runner.num_rows.__len__() == 23 + -(-len(prompt) // 32)
    assert requests[1].model_passes == 2 + -(-len(prompt) // 32)  # the last chunk verifies drafts too
    assert requests[1].draft_token_count == requests[1].accepted_token_count == 7 * 3


@pytest.mark.parametrize("drafter", [None, RandomDrafter(1)])
def test_preemption_with_a_quarter_of_the_memory_changes_no_output(drafter):
    prompts = [make_prompt(30, salt) for salt in range(8)]
    demand = sum(-(-(30 + len(continue_(p, 40))) // 4) for p in prompts)
    harness = Harness(num_blocks=demand // 4, drafter=drafter, max_num_seqs=8, max_num_batched_tokens=64)
    requests = [harness.add(str(i), prompt, 40) for i, prompt in enumerate(prompts)]
    harness.run()
    assert sum(r.num_preemptions for r in requests) > 0
    assert harness.outputs == {str(i): continue_(p, 40) for i, p in enumerate(prompts)}


def test_the_youngest_is_preempted_and_resumes_before_younger_ones():
    harness = Harness(num_blocks=6, block_size=4, max_num_seqs=3, prefix_caching=False)
    a = harness.add("a", make_prompt(8, 1), 40)
    b = harness.add("b", make_prompt(8, 2), 40)
    c = harness.add("c", make_prompt(7, 3), 1)
    output = harness.step()
    assert [item.request for item in output.scheduled] == [a, b, c]
    d = harness.add("d", make_prompt(20, 4), 4)  # needs more blocks than are free
    preempted = []
    while not preempted:
        preempted = harness.step().preempted
    assert preempted == [b]  # request c has ended
    assert list(harness.scheduler.requests) == [a, b, d]


@pytest.mark.parametrize("drafter", [None, OracleDrafter()])
def test_one_request_of_another_adapter_starts_at_once_beside_a_burst(drafter):
    """All places are taken by long answers: without turns it would wait for the end of one of them."""
    harness = Harness(num_blocks=600, max_num_seqs=32, max_num_batched_tokens=256, drafter=drafter)
    prompt = prompt_with(80)
    burst = [harness.add(str(i), prompt, 80, adapter="burst") for i in range(33)]
    for _ in range(2):
        harness.step()
    late = harness.add("late", make_prompt(5, 7), 10)
    assert late in [item.request for item in harness.step().scheduled]
    assert [request.num_preemptions for request in burst] == [0] * 31 + [1, 0]  # the youngest that ran
    harness.run()
    assert late.num_preemptions == 0
    assert sum(request.num_preemptions for request in burst) == 1
    assert harness.outputs["late"] == continue_(make_prompt(5, 7), 10)
    assert all(harness.outputs[request.request_id] == continue_(prompt, 80) for request in burst)


def test_each_adapter_keeps_a_place_and_no_more_are_taken_than_there_are():
    harness = Harness(num_blocks=200, max_num_seqs=4)
    requests = {name: harness.add(name, prompt_with(40), 40, adapter=name[0]) for name in ("a1", "a2", "a3", "a4")}
    harness.step()
    requests |= {
        name: harness.add(name, prompt_with(40), 40, adapter=name[0]) for name in ("b1", "c1", "d1", "e1", "b2")
    }
    for _ in range(10):
        harness.step()
    assert {r.request_id for r in requests.values() if r.block_ids} == {"a1", "b1", "c1", "d1"}
    harness.run()
    assert harness.outputs == dict.fromkeys(requests, continue_(prompt_with(40), 40))


def test_a_preempted_request_waits_for_the_next_step_even_if_it_could_share_more_blocks_now():
    harness = Harness(num_blocks=3, block_size=16, max_num_seqs=2, max_num_batched_tokens=9, max_draft_tokens=0)
    harness.add("a", make_prompt(1), 1)
    harness.step()
    # Both prompts begin with the same 28 tokens, and neither request can share blocks when it is admitted.
    prompts = {"b": make_prompt(28, 2), "c": make_prompt(29, 2)}
    requests = {name: harness.add(name, prompt, 9) for name, prompt in prompts.items()}
    harness.run()  # checks in every step that no preempted request is scheduled
    assert sum(request.num_preemptions for request in requests.values()) > 0
    assert [harness.outputs[name] for name in prompts] == [continue_(prompt, 9) for prompt in prompts.values()]


def test_prefix_reuse_computes_fewer_tokens_with_the_same_output():
    prompts = [[*make_prompt(40), *make_prompt(5, salt)] for salt in range(4)]
    totals = {}
    for caching in (True, False):
        harness = Harness(prefix_caching=caching, max_num_batched_tokens=64)
        for i, prompt in enumerate(prompts):
            request = harness.add(str(i), prompt, 10)
            harness.run()
            assert request.cached_token_count == (40 if caching and i else 0)
        assert harness.outputs == {str(i): continue_(p, 10) for i, p in enumerate(prompts)}
        totals[caching] = sum(harness.runner.num_rows)
    assert totals[False] - totals[True] == 3 * 40


def test_a_preempted_request_s_own_blocks_do_not_count_as_reuse():
    harness = Harness(num_blocks=16, max_num_seqs=2)
    requests = [harness.add(str(salt), make_prompt(12, salt), 40) for salt in (3, 5)]
    harness.run()
    assert requests[1].num_preemptions > 0
    assert sum(harness.runner.num_rows) < 2 * 12 + sum(map(len, harness.outputs.values())) * 2  # it reused some of them
    assert [request.cached_token_count for request in requests] == [0, 0]


def test_no_request_starves_under_a_stream_of_younger_ones():
    harness = Harness(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=16)
    harness.add("old", make_prompt(50), 10)
    for i in range(60):
        harness.add(str(i), make_prompt(6, i), 6)
        harness.step()
        if "old" in harness.reasons:
            break
    assert harness.outputs["old"] == continue_(make_prompt(50), 10)
    assert i < 30
    harness.run()


def test_equal_requests_finish_in_their_order_of_arrival():
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=8)
    for i in range(6):
        harness.add(str(i), make_prompt(10, 3), 5)
    harness.run()
    assert list(harness.reasons) == [str(i) for i in range(6)]


def test_drafts_and_prompts_share_a_step():
    harness = Harness(drafter=OracleDrafter(), max_draft_tokens=100, max_num_batched_tokens=32)
    harness.add("a", prompt_with(answer_length=30), 200)
    harness.step()
    harness.add("b", make_prompt(30, 1), 5)
    first, second = harness.step().scheduled
    assert (first.num_tokens, len(first.draft_token_ids)) == (1, 15)
    assert (second.num_tokens, len(second.draft_token_ids)) == (16, 0)


def test_drafts_are_shared_equally_and_take_no_block_that_a_known_token_needs():
    harness = Harness(drafter=OracleDrafter(), max_draft_tokens=100, max_num_batched_tokens=32)
    for name in "abc":
        harness.add(name, prompt_with(answer_length=30), 200)
    assert [len(item.draft_token_ids) for item in harness.step().scheduled] == [5, 5, 5]
    tight = Harness(drafter=OracleDrafter(), num_blocks=4, block_size=4, max_num_seqs=2)
    for name in "ab":
        tight.add(name, make_prompt(7), 8)
    output = tight.step()
    assert not output.preempted
    assert [len(item.draft_token_ids) for item in output.scheduled] == [1, 1]  # those blocks' last slots


def prompt_with(answer_length: int) -> list[int]:
    """A prompt whose continuation ends by itself after this number of tokens."""
    salts = (make_prompt(5, salt) for salt in range(10_000))
    return next(p for p in salts if len(continue_(p, answer_length + 1)) == answer_length)


def test_the_end_token_stops_and_is_not_part_of_the_output():
    harness = Harness()
    prompt = prompt_with(answer_length=3)
    harness.add("a", prompt, 20)
    harness.run()
    assert harness.reasons["a"] is FinishReason.STOP
    assert len(harness.outputs["a"]) == 3
    assert next_token([*prompt, *harness.outputs["a"]]) == EOS


@pytest.mark.parametrize("drafter", [None, OracleDrafter()])
def test_max_tokens_and_the_context_end_with_length(drafter):
    prompt = next(p for p in PROMPTS if len(continue_(p, 12)) == 12)
    harness = Harness(drafter=drafter, max_model_len=len(prompt) + 7)
    harness.add("by-request", prompt, 5)
    harness.add("by-context", prompt, 500)
    harness.add("one", prompt, 1)
    harness.run()
    assert {name: len(tokens) for name, tokens in harness.outputs.items()} == {
        "by-request": 5,
        "by-context": 7,
        "one": 1,
    }
    assert set(harness.reasons.values()) == {FinishReason.LENGTH}


@pytest.mark.parametrize("drafter", [None, OracleDrafter()])
def test_an_answer_of_exactly_max_tokens_ends_with_length_even_if_the_end_token_would_follow(drafter):
    harness = Harness(drafter=drafter)
    harness.add("a", prompt_with(answer_length=3), 3)
    harness.run()
    assert harness.reasons["a"] is FinishReason.LENGTH


def test_abort_frees_a_request_in_any_state():
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=8)
    requests = [harness.add(str(i), make_prompt(20, i)) for i in range(4)]
    harness.step()
    for request in (requests[3], requests[0]):  # waiting, in prefill
        harness.scheduler.abort(request)
        harness.check()
        assert request.finish_reason is FinishReason.ABORT
    output = harness.scheduler.schedule()
    sampled = harness.runner.execute(output)
    harness.scheduler.abort(requests[1])  # while the model runs
    updates = harness.scheduler.update_from_output(output, sampled.sampled_token_ids)
    assert requests[1] not in [update.request for update in updates]
    harness.scheduler.abort(requests[1])  # a second abort has no effect
    harness.run()
    assert harness.outputs["2"] == continue_(make_prompt(20, 2), 20)
