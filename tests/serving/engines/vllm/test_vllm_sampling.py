"""How sampling parameters are passed to vLLM, what is refused, and how its log probabilities are returned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from serving.clients.answer import RequestProgress
from serving.constraints import LarkConstraint
from serving.engines.vllm.engine import engine_output
from serving.engines.vllm.options import sampling_params
from serving.errors import EngineDeadError, InvalidRequestError
from serving.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams, TokenLogprob
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
END = TOKENIZER.eos_token_ids[0]
PROMPT = (5, 6, 7)


def request(constraint: LarkConstraint | None = None, **sampling: object) -> GenerationRequest:
    return GenerationRequest("a", PROMPT, SamplingParams(**sampling), constraint)


def params(asked: GenerationRequest, *, max_model_len: int = 100, speculates: bool = False):
    return sampling_params(asked, tokenizer=TOKENIZER, max_model_len=max_model_len, speculates=speculates)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (request(temperature=2.1), "temperature is 2.1; vLLM takes 0"),
        (request(temperature=0.001), "temperature is 0.001"),  # it would take 0.01
        (request(min_p=0.1), "min_p is 0.1, which vLLM does not have with speculation; leave it at 0.0"),
        (request(LarkConstraint('start: "a"'), logprobs=0), "logprobs is 0, and under a constraint"),
    ],
)
def test_parameters_that_vllm_treats_differently_are_refused(asked: GenerationRequest, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        params(asked, speculates=True)


@pytest.mark.vllm
def test_every_parameter_is_passed_on() -> None:
    asked = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 11,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.3,
        "frequency_penalty": 0.4,
        "min_tokens": 6,
        "max_tokens": 9,
        "seed": 0,
        "logprobs": 3,
    }
    passed = params(request(**asked))
    assert {name: getattr(passed, name) for name in asked} == asked
    assert (passed.stop_token_ids, passed.stop) == ([END], [])
    assert params(request()).top_k == 0


@pytest.mark.vllm
def test_min_tokens_beyond_the_context_are_reduced_as_max_tokens_are() -> None:
    passed = params(request(min_tokens=50, max_tokens=60), max_model_len=23)
    assert (passed.min_tokens, passed.max_tokens) == (20, 20)


def output(*tokens: int, reason: str | None = None) -> SimpleNamespace:
    """vLLM's output with logprobs=2: the chosen token and the two likeliest, of which it may be one."""
    found = [
        {token: entry(-3.0, 9), 8: entry(-0.5, 1), 9: entry(-1.0, 2), **({9: entry(-1.0, 2)} if token == 9 else {})}
        for token in tokens
    ]
    completion = SimpleNamespace(token_ids=list(tokens), logprobs=found, finish_reason=reason)
    return SimpleNamespace(outputs=[completion], num_cached_tokens=0)


def entry(logprob: float, rank: int) -> SimpleNamespace:
    return SimpleNamespace(logprob=logprob, rank=rank)


def read(asked: GenerationRequest, *outputs: SimpleNamespace) -> list[GenerationOutput]:
    answer = RequestProgress(asked, TOKENIZER, started=0.0, speculates=True)
    return [answer.add(engine_output(item, asked.sampling.logprobs)) for item in outputs]


def test_logprobs_are_those_of_the_tokens_shown() -> None:
    top = ((8, -0.5), (9, -1.0))
    first, last = read(request(logprobs=2), output(30, 9), output(31, END, reason="stop"))
    assert first.logprobs == (TokenLogprob(30, -3.0, top), TokenLogprob(9, -1.0, top))
    assert (last.token_ids, last.logprobs) == ((31,), (TokenLogprob(31, -3.0, top),))


def test_a_request_that_vllm_gives_up_is_an_error_of_ours() -> None:
    with pytest.raises(EngineDeadError, match="vLLM ended the answer with an error"):
        read(request(), output(30, reason="error"))


def test_surplus_logprobs_are_dropped_and_the_likeliest_kept() -> None:
    [only] = read(request(logprobs=0, max_tokens=1), output(30))
    assert only.logprobs == (TokenLogprob(30, -3.0, ()),)


def test_logprobs_after_a_stop_string_or_max_tokens_are_dropped() -> None:
    tokens = TOKENIZER.encode("zq!x")
    assert len(tokens) == 4
    [only] = read(request(logprobs=2, stop=("q!",)), output(*tokens))
    assert only.finish_reason is FinishReason.STOP
    assert tuple(item.token_id for item in only.logprobs) == only.token_ids == tuple(tokens[:3])
    [only] = read(request(logprobs=2, max_tokens=2), output(*tokens))
    assert tuple(item.token_id for item in only.logprobs) == only.token_ids == tuple(tokens[:2])


def test_without_logprobs_there_are_none() -> None:
    completion = SimpleNamespace(token_ids=[30], logprobs=None, finish_reason=None)
    [only] = read(request(), SimpleNamespace(outputs=[completion], num_cached_tokens=0))
    assert (only.token_ids, only.logprobs) == ((30,), ())
