"""A prompt of many steps leaves room for other requests."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from serving.engines.paged.scheduler import token_shares
from serving.engines.paged.step import SchedulerOutput
from tests.serving.engines.paged.paged_fakes import Harness, continue_, make_prompt

REQUESTS = st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=8)


@given(REQUESTS, st.integers(1, 64), st.integers(1, 32), st.booleans())
def test_shares_are_within_the_step_and_waste_nothing_that_others_miss(requests, budget, long_share, has_others):
    missing, long = [count for count, _ in requests], [is_long for _, is_long in requests]
    shares = token_shares(missing, long, budget, long_share=long_share, has_others=has_others)
    assert all(0 <= share <= count for share, count in zip(shares, missing, strict=True))
    assert sum(shares) <= budget
    others = sum(count for count, is_long in requests if not is_long)
    if any(long):
        assert shares[long.index(True)] > 0, "the oldest long one makes progress"
    if sum(shares) < budget:
        assert sum(share for share, is_long in zip(shares, long, strict=True) if not is_long) == others


def tokens_of(output: SchedulerOutput) -> dict[str, int]:
    return {item.request.request_id: item.num_tokens for item in output.scheduled}


def long_beside_short(**options) -> Harness:
    """A prompt of 200 tokens, a quarter of 16 being its share of a step, and one of 12 after two steps alone."""
    harness = Harness(num_blocks=100, max_num_seqs=8, max_num_batched_tokens=16, max_draft_tokens=0, **options)
    harness.add("old", make_prompt(200), 4)
    assert [tokens_of(harness.step()) for _ in range(2)] == [{"old": 16}, {"old": 16}], "alone it takes whole steps"
    harness.add("young", make_prompt(12, 1), 4)
    return harness


def test_a_prompt_of_many_steps_takes_its_share_while_others_run_and_a_little_longer():
    harness = long_beside_short()
    assert tokens_of(harness.step()) == {"old": 4, "young": 12}, "the young one waited"
    beside = []
    while "young" not in harness.reasons:
        beside.append(tokens_of(harness.step()))
    assert beside == [{"old": 4, "young": 1}] * 3
    after = [tokens_of(harness.step())["old"] for _ in range(4)]
    assert after == [4, 4, 16, 16], "a client's next request would come now"
    harness.run()
    assert harness.outputs == {"old": continue_(make_prompt(200), 4), "young": continue_(make_prompt(12, 1), 4)}


def test_the_last_part_of_a_long_prompt_is_no_larger_than_the_others():
    harness = long_beside_short()
    chunks = []
    for number in range(100):
        if "old" in harness.reasons:
            break
        harness.add(str(number), make_prompt(6, number), 4)
        chunks.append(tokens_of(harness.step()).get("old", 0))
    assert max(chunks) <= 6, "its share, or half of what the others have"


def test_a_long_prompt_that_comes_later_is_admitted_with_its_share():
    harness = Harness(num_blocks=100, max_num_seqs=8, max_num_batched_tokens=16, max_draft_tokens=0)
    harness.add("decoding", next(p for p in map(partial(make_prompt, 5), range(99)) if len(continue_(p, 20)) == 20), 20)
    harness.step()
    harness.add("long", make_prompt(64), 2)
    assert tokens_of(harness.step()) == {"decoding": 1, "long": 4}


def test_long_prompts_alone_are_computed_one_after_the_other_in_whole_steps():
    harness = Harness(num_blocks=100, max_num_seqs=8, max_num_batched_tokens=16, max_draft_tokens=0)
    for name, salt in (("first", 0), ("second", 1)):
        harness.add(name, make_prompt(64, salt), 2)
    harness.run()
    assert list(harness.reasons) == ["first", "second"]
    assert len(harness.runner.num_rows) < 20, "with a share of 4 they would take 32 steps"
