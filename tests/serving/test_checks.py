"""The limits of a request: each refused with the value, the limit and the remedy."""

from __future__ import annotations

import math

import pytest

from serving.checks import MAX_SEED, check_request
from serving.errors import ContextLengthError, InvalidRequestError, UnknownAdapterError
from serving.types import GenerationRequest, SamplingParams


def check(prompt: tuple[int, ...] = (1, 2), adapter: str | None = None, **sampling: object) -> None:
    request = GenerationRequest("id", prompt, SamplingParams(**sampling), adapter=adapter)
    check_request(request, max_model_len=8, vocab_size=10, adapters=("one", "two"))


def test_what_fits_passes() -> None:
    check()
    check(prompt=(9,) * 7)
    check(max_tokens=10_000)  # an answer may be cut by the context, which is no mistake
    check(temperature=0.0, seed=0, adapter="one")
    check(temperature=100.0, top_p=1e-9, top_k=1, seed=MAX_SEED, stop=("x",))


def test_a_prompt_must_leave_room_for_one_token() -> None:
    with pytest.raises(ContextLengthError, match=r"8 tokens .* context 8.* shorten the prompt to 7"):
        check(prompt=(1,) * 8)


def test_max_tokens_is_never_called_a_prompt_that_is_too_long() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens is 0; at least 1") as caught:
        check(max_tokens=0)
    assert not isinstance(caught.value, ContextLengthError)


def test_an_unknown_adapter_is_told_the_known_ones() -> None:
    with pytest.raises(UnknownAdapterError, match="'three' is unknown; this engine has: one, two"):
        check(adapter="three")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"prompt": (1, 10)}, "token 10 is outside the vocabulary of 10"),
        ({"prompt": (-1, 1)}, "token -1 is outside"),
        ({"temperature": -1.0}, "temperature is -1.0; give 0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0; give a number above 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"top_k": 0}, "top_k is 0; give 1 or more"),
        ({"seed": -1}, "seed is -1; give 0"),
        ({"seed": MAX_SEED + 1}, "seed is"),
        ({"stop": ("a", "")}, "stop string is empty"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check(**wrong)
