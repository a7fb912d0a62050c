"""The screen of the head: what it clears cannot be chosen, and on likely inputs it clears most."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.gpu.kernel_operands import bitmasks_of, int32, poisoned
from serving.kernels.shape_checks import KernelArgumentError

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
VOCAB, WIDTH = 1003, 64  # the vocabulary is no multiple of a vector


def screened(kernels, head, x, allowed):
    """The tokens left of each row's allowed ones, what `narrow` returns, and all products."""
    products = poisoned(len(x), len(head))
    kernels.dense_gemm(x, head, products)
    bitmasks = bitmasks_of(allowed, len(head))
    sums = kernels.make_screen(head).narrow(x, int32(range(len(x))), bitmasks)
    left = [[n for n in range(len(head)) if row[n // 32].item() >> n % 32 & 1] for row in bitmasks]
    return left, sums, products


def weights(seed, kind, dtype):
    generator = torch.manual_seed(seed)
    head = torch.randn(VOCAB, WIDTH, generator=generator)
    if kind == "ties":
        head = head[torch.randint(20, (VOCAB,), generator=generator)]
    elif kind == "outliers":
        head[torch.randint(VOCAB, (30,), generator=generator), torch.randint(WIDTH, (30,), generator=generator)] *= 500
    elif kind == "tiny":
        head *= 1e-6
    elif kind == "tinier":  # the squares of its values are 0
        head *= 1e-24
    return head.to(dtype)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["plain", "ties", "outliers", "tiny", "tinier"]),
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([1e-24, 1e-5, 1.0, 300.0]),
    share=st.sampled_from([0.01, 0.5, 1.0]),
)
def test_no_token_with_the_largest_logit_is_cleared(cpu_float32, seed, kind, dtype, spread, share):
    head = weights(seed, kind, dtype)
    x = torch.randn(5, WIDTH) * torch.exp(torch.randn(WIDTH)) * spread
    x[4] = head[7].float()  # one token is ahead of most
    allowed = [sorted({7, *torch.nonzero(torch.rand(VOCAB) < share)[:, 0].tolist()}) for _ in x]
    left, sums, products = screened(cpu_float32, head, x, allowed)
    for row in range(len(x)):
        logits = products[row, allowed[row]]
        largest = {allowed[row][i] for i in torch.nonzero(logits == logits.max())[:, 0].tolist()}
        assert largest <= set(left[row]) <= set(allowed[row])
        if len(left[row]) == 1:
            assert sums[row, 0] == logits.max()


def test_on_text_like_rows_few_tokens_are_left_and_the_sum_of_the_others_is_right(cpu_float32):
    head = torch.randn(20_000, 896, generator=torch.manual_seed(1)).bfloat16()
    chosen = torch.randint(20_000, (12,))
    x = torch.randn(12, 896) + 0.5 * head[chosen].float()  # as a trained model's: near the rows of likely tokens
    x /= 10
    left, sums, products = screened(cpu_float32, head, x, [list(range(20_000))] * 12)
    assert max(map(len, left)) < 2_000
    for row in range(12):
        kept = torch.logsumexp(products[row, left[row]].double(), 0)
        together = torch.logaddexp(kept, sums[row, 1].double())
        assert together.item() == pytest.approx(torch.logsumexp(products[row].double(), 0).item(), abs=0.01)


def test_a_row_does_not_depend_on_others(cpu_float32):
    head, x = weights(3, "plain", torch.bfloat16), torch.randn(40, WIDTH)
    everything = [list(range(VOCAB))] * 40
    together, sums, _ = screened(cpu_float32, head, x, everything)
    for row in (0, 17, 39):
        alone, sum_alone, _ = screened(cpu_float32, head, x[row : row + 1], everything[:1])
        assert (alone, sum_alone.tolist()) == ([together[row]], [sums[row].tolist()])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nothing_is_cleared_where_logits_are_not_numbers(cpu_float32, bad):
    head, x = weights(4, "plain", torch.float32), torch.randn(2, WIDTH)
    x[1, 3] = bad
    left, _, _ = screened(cpu_float32, head, x, [list(range(VOCAB))] * 2)
    assert len(left[1]) == VOCAB


def test_a_bit_of_a_token_that_does_not_exist_is_refused(cpu_float32):
    head, bitmasks = torch.randn(VOCAB, WIDTH), bitmasks_of([[VOCAB]], VOCAB)
    with pytest.raises(KernelArgumentError, match="a bit out of range"):
        cpu_float32.make_screen(head).narrow(torch.randn(1, WIDTH), int32([0]), bitmasks)


def test_a_width_that_groups_do_not_divide_has_no_screen(cpu_float32):
    assert cpu_float32.make_screen(torch.randn(100, 72)) is None
