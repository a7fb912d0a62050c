"""Divide a step's tokens among running requests, so that a prompt of many steps does not hold up the others."""

from __future__ import annotations

from collections.abc import Sequence


def token_shares(
    missing: Sequence[int], long: Sequence[bool], budget: int, *, long_share: int, has_others: bool
) -> list[int]:
    """How many tokens of each request a step computes: first come, first served, except for long prompts.

    While there are other requests, the oldest long prompt gets `long_share` tokens, or half as many as all the others
    if that is more; younger long ones wait for it.

    Args:
        missing: tokens of each running request that are not computed yet, oldest request first.
        long: whether each is in the middle of a long prompt.
        budget: tokens in the step; at least 1.
        long_share: at least 1; the budget may allow fewer.
        has_others: whether there were other requests a few steps ago, which may come again at once.
    """
    shares = [0] * len(missing)
    is_shared = any(long) and (has_others or not all(long))
    if is_shared:
        first = long.index(True)
        shares[first] = min(missing[first], long_share, budget)
        budget -= shares[first]
    num_others = 0
    for index, count in enumerate(missing):
        if not (is_shared and long[index]):
            shares[index] = min(count, budget)
            budget -= shares[index]
            num_others += shares[index]
    if is_shared:
        shares[first] += max(0, min(num_others // 2, missing[first], shares[first] + budget) - shares[first])
    return shares
