"""Trained heads: what they guess, and which files are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from serving.drafting.draft_heads import DraftHeads
from serving.errors import WeightsError
from tests.draft_heads import random_heads

VOCAB, HIDDEN, HEADS = 70, 12, 3
ANSWER_TOKENS = (3, 5, 33, 64, 69)
PROMPT = (1, 5, 40, 900)  # a tokenizer may have more tokens than the model


class OnAnotherDevice(torch.Tensor):
    """Values that no tensor of the CPU may be computed with, as if they were on a GPU; only indices may be mixed in."""

    @staticmethod
    def __new__(cls, values):
        tensor = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device="meta")
        tensor.values_there = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        name, kwargs = operation.overloadpacket.__name__, kwargs or {}
        if str(kwargs.get("device")) == "cpu":
            return args[0].values_there.clone()
        plain = [arg for arg in args if isinstance(arg, torch.Tensor) and not isinstance(arg, cls)]
        if plain and not name.startswith("index"):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        return cls(operation(*(arg.values_there if isinstance(arg, cls) else arg for arg in args), **kwargs))


@pytest.fixture
def model_head():
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.fixture
def heads(tmp_path, model_head):
    return DraftHeads.load(random_heads(tmp_path / "heads", HIDDEN, ANSWER_TOKENS), model_head)


def test_each_head_guesses_its_token_among_those_of_answers_and_of_the_prompt(heads, model_head):
    hidden = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(2))
    text = heads.begin(PROMPT)
    assert text.guesses(5, None) == []  # no pass yet
    text.observe(hidden.numpy(), 5)
    candidates = sorted({*ANSWER_TOKENS, *PROMPT[:-1]})
    for place in range(HEADS):
        x = hidden + functional.silu(heads.weight[place] @ hidden + heads.bias[place])
        expected = (model_head.float()[candidates] @ x).softmax(-1)
        best = expected.argsort(descending=True)[:4].tolist()
        guesses = text.guesses(5 + place, None)
        assert [token for token, _ in guesses] == [candidates[i] for i in best]
        assert [confidence for _, confidence in guesses] == pytest.approx(
            [255 * float(expected[i]) for i in best], abs=1
        )
    assert text.guesses(4, None) == text.guesses(5 + HEADS, None) == []
    text.observe(-hidden.numpy(), 6)
    assert text.guesses(5, None) == []
    assert text.guesses(6, None) != guesses


def test_a_model_on_another_device_lends_its_rows_and_the_guesses_are_the_same(heads, model_head):
    elsewhere = OnAnotherDevice(model_head)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(1, HIDDEN) @ elsewhere[torch.tensor([0, 5])].float().mT
    hidden = np.linspace(-1, 1, HIDDEN, dtype=np.float16)  # whatever the model computes in
    texts = [one.begin(PROMPT) for one in (heads, replace(heads, model_head=elsewhere))]
    for text in texts:
        text.observe(hidden, 5)
    for place in range(HEADS):
        here, there = (text.guesses(5 + place, None) for text in texts)
        assert here == there != []


def test_only_tokens_of_the_bitmask_are_guessed_with_probabilities_among_them(heads):
    text = heads.begin(PROMPT)
    text.observe(np.ones(HIDDEN, np.float32), 5)
    bitmask = np.zeros(-(-VOCAB // 32), np.int32)
    assert text.guesses(5, bitmask) == []
    for token in (0, 63, 64):
        bitmask[token // 32] |= np.int32(np.uint32(1 << token % 32).view(np.int32))
    assert text.guesses(5, bitmask) == [(64, 255)]


def test_a_hidden_state_that_is_not_finite_gives_no_guess_and_later_changes_of_it_do_not_count(heads):
    text = heads.begin(PROMPT)
    text.observe(np.full(HIDDEN, np.nan, np.float32), 5)
    assert text.guesses(5, None) == []
    hidden = np.ones(HIDDEN, np.float32)
    text.observe(hidden, 5)
    hidden[:] = np.nan
    assert text.guesses(5, None)


def tensors(**changes):
    good = {
        "weight": torch.zeros(HEADS, HIDDEN, HIDDEN),
        "bias": torch.zeros(HEADS, HIDDEN),
        "answer_tokens": torch.tensor(ANSWER_TOKENS, dtype=torch.int32),
    }
    return {name: tensor for name, tensor in {**good, **changes}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": torch.zeros(HEADS, HIDDEN, HIDDEN + 1)}, r"\[3, 12, 13\] where floats \[3, 12, 12\] are expected"),
        ({"weight": torch.zeros(())}, "0 heads where 1 to 16 are expected"),
        ({"weight": torch.zeros(17, HIDDEN, HIDDEN)}, "17 heads where 1 to 16 are expected"),
        ({"weight": torch.zeros(HEADS, HIDDEN, HIDDEN, dtype=torch.int8)}, "torch.int8"),
        ({"bias": torch.zeros(HEADS + 1, HIDDEN)}, r"\[4, 12\] where floats \[3, 12\] are expected"),
        ({"bias": torch.full((HEADS, HIDDEN), torch.nan)}, "a weight is NaN or infinite"),
        ({"bias": None}, "bias"),
        ({"answer_tokens": torch.tensor([VOCAB], dtype=torch.int32)}, r"token ids outside 0 … 69"),
        ({"answer_tokens": torch.tensor([-1], dtype=torch.int32)}, r"token ids outside 0 … 69"),
        ({"answer_tokens": torch.tensor([1.0])}, "not int32 token ids"),
        ({"tree": torch.zeros(1)}, "it has tree besides weight, bias and answer_tokens"),
    ],
)
def test_files_of_other_models_and_damaged_ones_are_refused(tmp_path, model_head, changes, message):
    path = tmp_path / "heads"
    save_file(tensors(**changes), path)
    with pytest.raises(WeightsError, match=f"{path} is not a valid drafter file: .*{message}"):
        DraftHeads.load(path, model_head)


def test_a_file_that_is_no_safetensors_file_or_missing_is_refused(tmp_path, model_head):
    (tmp_path / "text").write_text("no tensors")
    for name in ("text", "none"):
        with pytest.raises(WeightsError, match="is not a valid drafter file"):
            DraftHeads.load(tmp_path / name, model_head)
