"""A request outside a limit is refused with the value, the limit and the remedy."""

from __future__ import annotations

import math

import pytest

from serving.errors import ContextLengthError, InvalidRequestError, UnknownAdapterError
from serving.request_checks import MAX_SEED, check_request
from serving.types import GenerationRequest, SamplingParams


def check(prompt: tuple[int, ...] = (1, 2), adapter: str | None = None, **sampling: object) -> None:
    request = GenerationRequest("id", prompt, SamplingParams(**sampling), adapter=adapter)
    check_request(request, max_model_len=8, vocab_size=10, adapters=("one", "two"), unsupported=("logprobs",))


def test_valid_requests_are_accepted() -> None:
    check()
    check(prompt=(9,) * 7)
    check(max_tokens=10_000)  # the context may truncate an answer, which is not an error
    check(temperature=0.0, seed=0, adapter="one")
    check(temperature=100.0, top_p=1e-9, top_k=1, seed=MAX_SEED, stop=("x",))
    check(min_p=1.0, repetition_penalty=0.01, presence_penalty=-2.0, frequency_penalty=2.0)
    check(min_tokens=4, max_tokens=4, logprobs=None, stop=("x" * 256,) * 64)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    with pytest.raises(ContextLengthError, match=r"8 tokens .* context 8.* shorten the prompt to 7"):
        check(prompt=(1,) * 8)


def test_a_large_max_tokens_is_not_reported_as_a_long_prompt() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens is 0; at least 1") as caught:
        check(max_tokens=0)
    assert not isinstance(caught.value, ContextLengthError)


def test_the_error_of_an_unknown_adapter_lists_the_known_ones() -> None:
    with pytest.raises(UnknownAdapterError, match=r"'three' is unknown; this server has one, two$"):
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
        ({"stop": ("a",) * 65}, "65 stop strings; give at most 64"),
        ({"stop": ("b" * 257,)}, "257 characters; shorten 'bbbbb.*at most 256"),
        ({"min_p": -0.01}, "min_p is -0.01; give 0 to 1"),
        ({"min_p": math.nan}, "min_p is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; give 0.01 to 10"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; give -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1; give -2 to 2"),
        ({"min_tokens": -1}, "min_tokens is -1; give 0 to 512"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5; give 0 to 4, which is max_tokens"),
        ({"logprobs": -1}, "logprobs is -1; give 0 to 20"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logprobs": 0}, "logprobs is 0, which this engine does not have; leave it at None"),
    ],
)
def test_invalid_requests_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check(**wrong)


def test_the_error_of_an_unknown_adapter_lists_only_a_few() -> None:
    many = GenerationRequest("id", (1,), SamplingParams(), adapter="x")
    with pytest.raises(UnknownAdapterError, match=r"this server has a0, a1, a10, a11, a12 and 95 more$"):
        check_request(many, max_model_len=8, vocab_size=10, adapters=[f"a{i}" for i in range(100)])
    with pytest.raises(UnknownAdapterError, match="this server has none: leave it out"):
        check_request(many, max_model_len=8, vocab_size=10)
