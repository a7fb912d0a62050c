"""Blocks are allocated, shared and freed without loss, and only equal prefixes are shared."""

import pytest

from serving.engines.paged.block_manager import BlockManager
from serving.engines.paged.request import Request
from tests.serving.engines.paged.block_checks import check_integrity
from tests.serving.engines.paged.paged_fakes import make_prompt, make_request


def make_manager(num_blocks: int = 8, block_size: int = 4, prefix_caching: bool = True) -> BlockManager:
    return BlockManager(num_blocks=num_blocks, block_size=block_size, prefix_caching=prefix_caching)


def compute(manager: BlockManager, request: Request, num_tokens: int | None = None) -> None:
    """As if the model had computed the first `num_tokens`."""
    num_tokens = request.num_tokens if num_tokens is None else num_tokens
    assert manager.allocate(request, num_tokens) is not None
    request.num_computed_tokens = num_tokens
    manager.register(request)


def test_blocks_cover_the_tokens_with_less_than_one_block_to_spare():
    manager = make_manager(num_blocks=8)
    for num_tokens in range(1, 33):
        request = make_request("a", make_prompt(num_tokens))
        compute(manager, request)
        assert 0 <= len(request.block_ids) * 4 - num_tokens < 4
        check_integrity(manager, [request])
        manager.free(request)
    check_integrity(manager, [])


def test_allocating_without_room_returns_none_and_changes_nothing():
    manager = make_manager(num_blocks=3)
    first = make_request("a", make_prompt(8))
    compute(manager, first)
    second = make_request("b", make_prompt(8, salt=1))
    assert manager.allocate(second, 8) is None
    assert second.block_ids == []
    assert manager.num_free_blocks == 1
    check_integrity(manager, [first, second])


def test_block_ids_are_allocated_in_order_and_the_last_freed_is_reused_first():
    manager = make_manager(prefix_caching=False)
    first, second = make_request("a", make_prompt(8)), make_request("b", make_prompt(4))
    assert manager.allocate(first, 8) == [0, 1]
    assert manager.allocate(second, 4) == [2]
    manager.free(first)
    third = make_request("c", make_prompt(8))
    assert manager.allocate(third, 8) == [0, 1]


def test_an_equal_prefix_is_shared_while_its_first_request_runs_and_afterwards():
    manager = make_manager()
    prompt = make_prompt(13)
    first, second, third = (make_request(name, prompt) for name in "abc")
    compute(manager, first)
    assert manager.attach_prefix(second) == 12
    assert second.block_ids == first.block_ids[:3]
    check_integrity(manager, [first, second])
    manager.free(first)
    manager.free(second)
    assert manager.num_free_blocks == manager.num_blocks
    assert manager.attach_prefix(third) == 12
    check_integrity(manager, [third])


def test_one_prompt_token_is_always_left_to_compute():
    manager = make_manager()
    prompt = make_prompt(8)
    first, second = make_request("a", prompt), make_request("b", prompt)
    compute(manager, first)
    assert manager.attach_prefix(second) == 4
    assert second.num_computed_tokens == 4


def test_a_full_block_of_output_is_reused_too():
    manager = make_manager()
    first = make_request("a", make_prompt(6))
    first.token_ids += [7, 8, 9]
    compute(manager, first, 8)
    manager.free(first)
    second = make_request("b", [*make_prompt(6), 7, 8, 1])
    assert manager.attach_prefix(second) == 8


@pytest.mark.parametrize("changed", [0, 3, 4, 7])
def test_a_prefix_that_differs_in_one_token_is_not_shared_past_it(changed):
    manager = make_manager()
    prompt = make_prompt(12)
    first = make_request("a", prompt)
    compute(manager, first)
    other = [*prompt[:changed], prompt[changed] + 1, *prompt[changed + 1 :]]
    assert manager.attach_prefix(make_request("b", other)) == changed // 4 * 4


def test_adapters_do_not_share_blocks_blocks():
    manager = make_manager()
    prompt = make_prompt(9)
    compute(manager, make_request("a", prompt, adapter="one"))
    assert manager.attach_prefix(make_request("b", prompt, adapter="two")) == 0
    assert manager.attach_prefix(make_request("c", prompt)) == 0
    assert manager.attach_prefix(make_request("d", prompt, adapter="one")) == 8


class Colliding(int):
    """A token with the same hash as all others."""

    def __hash__(self) -> int:
        return 0


def test_different_tokens_with_equal_hashes_do_not_share_blocks():
    manager = make_manager()
    compute(manager, make_request("a", [Colliding(i) for i in range(1, 10)]))
    assert manager.attach_prefix(make_request("b", [Colliding(i) for i in range(11, 20)])) == 0
    # The second block's tokens are equal, those before it are not.
    mixed = [Colliding(i) for i in [11, 12, 13, 14, 5, 6, 7, 8, 9]]
    assert manager.attach_prefix(make_request("c", mixed)) == 0


def test_equal_blocks_computed_at_the_same_time_are_merged():
    manager = make_manager()
    prompt = make_prompt(8)
    first, second = make_request("a", prompt), make_request("b", prompt)
    for request in (first, second):
        assert manager.allocate(request, 8) is not None
        request.num_computed_tokens = 8
    assert manager.num_free_blocks == 4
    manager.register(first)
    manager.register(second)
    assert second.block_ids == first.block_ids
    assert manager.num_free_blocks == 6
    check_integrity(manager, [first, second])


def test_the_least_recently_used_prefix_is_evicted_first_and_its_end_before_its_beginning():
    manager = make_manager(num_blocks=6)
    old, new = make_prompt(8, salt=1), make_prompt(8, salt=2)
    for prompt in (old, new):
        request = make_request("x", prompt)
        compute(manager, request)
        manager.free(request)
    big = make_request("big", make_prompt(12, salt=3))
    assert manager.allocate(big, 12) is not None  # two free blocks and one evicted
    assert manager.attach_prefix(make_request("o", [*old, 1])) == 4
    assert manager.attach_prefix(make_request("n", [*new, 1])) == 8


def test_truncate_frees_the_blocks_of_rejected_drafts():
    manager = make_manager()
    request = make_request("a", make_prompt(5))
    compute(manager, request)
    assert manager.allocate(request, 5 + 8) is not None
    assert len(request.block_ids) == 4
    manager.truncate(request, 5)
    assert len(request.block_ids) == 2
    check_integrity(manager, [request])


def test_without_prefix_caching_nothing_is_shared():
    manager = make_manager(prefix_caching=False)
    compute(manager, make_request("a", make_prompt(12)))
    assert manager.attach_prefix(make_request("b", make_prompt(12))) == 0


def test_check_integrity_finds_errors():
    manager = make_manager()
    request = make_request("a", make_prompt(8))
    compute(manager, request)
    with pytest.raises(AssertionError, match="references"):
        check_integrity(manager, [])
    request.token_ids[0] += 1
    with pytest.raises(AssertionError, match="other tokens"):
        check_integrity(manager, [request])
