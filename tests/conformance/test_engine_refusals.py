"""Invalid requests fail at the first item with a typed error, and nothing is queued."""

from __future__ import annotations

import dataclasses
import math

import pytest

from serving.engine import Engine
from serving.errors import ContextLengthError, GrammarError, InvalidRequestError, UnknownAdapterError
from tests.conformance.asking import answer, ask, ask_long
from tests.conformance.kinds import MAX_MODEL_LEN, Kind

BROKEN_GRAMMARS = ["", "start: foo (", "start: missing", 'other: "a"', "start: /[/"]
WRONG_SAMPLING = [
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"seed": -1}, "seed"),
    ({"stop": ("",)}, "stop"),
    ({"stop": ("x",) * 65}, "stop"),
    ({"min_p": 1.1}, "min_p"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 25}, "min_tokens is 25; give 0 to 24"),
    ({"logprobs": 21}, "logprobs"),
]


async def test_a_prompt_over_the_context_is_refused_with_both_numbers(engine: Engine, kind: Kind) -> None:
    prompt = kind.tokenizer.encode("x " * MAX_MODEL_LEN)[:MAX_MODEL_LEN]
    with pytest.raises(ContextLengthError, match=f"{MAX_MODEL_LEN} tokens.* {MAX_MODEL_LEN}"):
        await answer(engine, dataclasses.replace(ask(kind.tokenizer), prompt_token_ids=tuple(prompt)))


async def test_an_empty_prompt_is_refused(engine: Engine, kind: Kind) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        await answer(engine, dataclasses.replace(ask(kind.tokenizer), prompt_token_ids=()))


@pytest.mark.parametrize("wrong", [-1, 10**9])
async def test_tokens_outside_the_vocabulary_are_refused(engine: Engine, kind: Kind, wrong: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"token {wrong} is outside"):
        await answer(engine, dataclasses.replace(ask(kind.tokenizer), prompt_token_ids=(5, wrong)))


@pytest.mark.parametrize(("sampling", "named"), WRONG_SAMPLING)
async def test_sampling_outside_its_limits_is_refused(
    engine: Engine, kind: Kind, sampling: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        await answer(engine, ask(kind.tokenizer, **sampling))


async def test_parameters_that_an_engine_does_not_have_are_refused_by_name(engine: Engine, kind: Kind) -> None:
    for name in kind.refuses:
        with pytest.raises(InvalidRequestError, match=f"{name} is 0.5.*does not have"):
            await answer(engine, ask(kind.tokenizer, **{name: 0.5}))
    if not kind.constrained_logprobs:
        with pytest.raises(InvalidRequestError, match="logprobs is 0, and under a constraint"):
            await answer(engine, ask(kind.tokenizer, grammar='start: "a"', logprobs=0))


async def test_an_unknown_adapter_is_refused_by_name(engine: Engine, kind: Kind) -> None:
    for name in ("no-such-adapter", "../etc", ""):
        with pytest.raises(UnknownAdapterError, match=f"adapter {name!r} is unknown"):
            await answer(engine, ask(kind.tokenizer, adapter=name))


@pytest.mark.parametrize("grammar", BROKEN_GRAMMARS)
async def test_a_grammar_that_does_not_compile_is_refused(engine: Engine, kind: Kind, grammar: str) -> None:
    with pytest.raises(GrammarError, match="grammar"):
        await answer(engine, ask(kind.tokenizer, grammar=grammar))


async def test_an_id_in_flight_is_refused_and_the_first_request_continues(engine: Engine, kind: Kind) -> None:
    first = ask_long(kind.tokenizer)
    stream = engine.generate(first)
    await anext(stream)
    second = dataclasses.replace(ask(kind.tokenizer), request_id=first.request_id)
    with pytest.raises(InvalidRequestError, match=first.request_id):
        await answer(engine, second)
    assert (await anext(stream)).finish_reason is None
    await stream.aclose()


async def test_an_id_is_free_again_after_its_request(engine: Engine, kind: Kind) -> None:
    request = ask(kind.tokenizer, max_tokens=3)
    assert (await answer(engine, request)).text == (await answer(engine, request)).text


async def test_after_refusals_the_engine_answers_as_before(engine: Engine, kind: Kind) -> None:
    before = await answer(engine, ask(kind.tokenizer))
    for wrong in (ask(kind.tokenizer, max_tokens=0), ask(kind.tokenizer, grammar="start: missing")):
        with pytest.raises(InvalidRequestError):
            await answer(engine, wrong)
    assert (await answer(engine, ask(kind.tokenizer))).text == before.text
