"""The loss of answers equals torch's cross entropy, and so does its gradient."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pipeline.train.answer_loss import answer_loss


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 7), (37, 49_152), (13, 151_936), (3, 600_000)])
def test_loss_and_gradient_equal_those_of_torch(rows: int, vocabulary: int) -> None:
    torch.manual_seed(rows)
    logits = (10 * torch.randn(rows, vocabulary)).requires_grad_()
    targets = torch.randint(vocabulary, (rows,))
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    (expected_grad,) = torch.autograd.grad(3 * expected, logits)
    loss = answer_loss(logits, targets)
    (grad,) = torch.autograd.grad(3 * loss, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(grad, expected_grad)


def test_large_logits_do_not_overflow_and_gradients_keep_the_type_of_the_logits() -> None:
    logits = torch.tensor([[20_000.0, 0.0], [-20_000.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    loss = answer_loss(logits, torch.tensor([0, 1]))
    (grad,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0 and loss.dtype == torch.float32
    assert grad.dtype == torch.bfloat16 and not grad.any()


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    with torch.no_grad():
        assert answer_loss(torch.zeros(2, 4), torch.tensor([0, 3])).item() == pytest.approx(2 * 1.3862944)
