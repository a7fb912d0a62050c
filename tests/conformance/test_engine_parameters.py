"""Each sampling parameter has the effect of its definition, checked with the engine's own log probabilities."""

from __future__ import annotations

import math

import pytest

from serving.engine import Engine
from serving.types import FinishReason
from tests.conformance.asking import PROMPTS, Answer, answer, answers, ask
from tests.conformance.kinds import MAX_NUM_SEQS, Kind

ROUNDING = 0.1  # of logits in bfloat16; logits that are equal after rounding may differ before
ENDING = 'Answer "yes" or "no": '  # some sampled answers to this end soon, whatever the model


def needs(kind: Kind, *names: str) -> None:
    if refused := kind.refuses.intersection(names):
        pytest.skip(f"{', '.join(refused)}: refused, which test_engine_refusals.py shows")


async def asked(engine: Engine, kind: Kind, **sampling) -> list[Answer]:
    """Eight prompts."""
    return await answers(engine, [ask(kind.tokenizer, prompt, **sampling) for prompt in PROMPTS[:MAX_NUM_SEQS]])


async def test_logprobs_are_a_distribution_with_the_likeliest_first(engine: Engine, kind: Kind) -> None:
    for whole in await asked(engine, kind, logprobs=20):
        for found in whole.logprobs:
            values = [logprob for _, logprob in found.top]
            assert len(dict(found.top)) == 20
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) < 1.001
            assert found.logprob == pytest.approx(values[0]), "greedy: the likeliest"


async def test_asking_for_logprobs_changes_no_text(engine: Engine, kind: Kind) -> None:
    expected = await asked(engine, kind)
    for count in (0, 3):
        with_logprobs = await asked(engine, kind, logprobs=count)
        assert all(len(found.top) == count for whole in with_logprobs for found in whole.logprobs)
        same = sum(a.token_ids == b.token_ids for a, b in zip(expected, with_logprobs, strict=True))
        assert same >= kind.same_share * len(expected)


async def test_logprobs_end_where_a_stop_string_does(engine: Engine, kind: Kind) -> None:
    """`answer` compares the tokens of every delta with its log probabilities."""
    text = (await answer(engine, ask(kind.tokenizer))).text
    stop = next(text[i : i + 2] for i in range(3, len(text)) if "\ufffd" not in text[i : i + 2])
    cut = await answer(engine, ask(kind.tokenizer, stop=(stop,), logprobs=1))
    assert (cut.text, cut.finish_reason) == (text[: text.index(stop)], FinishReason.STOP)
    assert cut.logprobs


@pytest.mark.parametrize("penalty", [{"presence_penalty": 2.0}, {"frequency_penalty": 1.0, "presence_penalty": -0.5}])
async def test_presence_and_frequency_penalties_lower_tokens_of_the_output(
    engine: Engine, kind: Kind, penalty: dict[str, float]
) -> None:
    """A greedy choice is the best after the penalties are subtracted; log probabilities differ as logits do."""
    needs(kind, *penalty)
    changed = 0
    for whole in await asked(engine, kind, max_tokens=40, logprobs=20, **penalty):
        for place, found in enumerate(whole.logprobs):
            said = whole.token_ids[:place]

            def score(token: int, logprob: float, said: tuple[int, ...] = said) -> float:
                presence, frequency = penalty.get("presence_penalty", 0.0), penalty.get("frequency_penalty", 0.0)
                return logprob - presence * (token in said) - frequency * said.count(token)

            best = max(score(*candidate) for candidate in found.top)
            assert score(found.token_id, found.logprob) >= best - ROUNDING
            changed += found.logprob < found.top[0][1]
    assert changed, "the penalties changed no choice, so nothing was shown"


async def test_a_repetition_penalty_lowers_tokens_of_prompt_and_output(engine: Engine, kind: Kind) -> None:
    needs(kind, "repetition_penalty")
    repeated = []
    for factor in (1.0, 3.0):
        wholes = await asked(engine, kind, repetition_penalty=factor)
        seen = [(kind.tokenizer.encode(prompt), whole) for prompt, whole in zip(PROMPTS, wholes, strict=False)]
        counts = [(t in prompt or t in w.token_ids[:i]) for prompt, w in seen for i, t in enumerate(w.token_ids)]
        repeated.append(sum(counts) / len(counts))
    assert repeated[1] < 0.7 * repeated[0]


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"min_p": 0.2}, {"min_p": 0.05, "top_k": 10, "temperature": 0.7}])
async def test_tokens_that_top_k_or_min_p_exclude_are_never_sampled(
    engine: Engine, kind: Kind, sampling: dict[str, float]
) -> None:
    needs(kind, *sampling)
    sampling = {"temperature": 1.5, "top_k": 20, "min_p": 0.0, **sampling}
    others = 0
    for whole in await asked(engine, kind, seed=4, logprobs=20, **sampling):
        for found in whole.logprobs:
            values = [logprob for _, logprob in found.top]
            assert found.logprob >= values[int(sampling["top_k"]) - 1] - ROUNDING
            share = math.exp((found.logprob - values[0]) / sampling["temperature"])
            assert share >= sampling["min_p"] * math.exp(-ROUNDING)
            others += share < 1
    assert others or engine.name == "fake", "only the likeliest tokens, so nothing was shown"


async def test_no_end_before_min_tokens(engine: Engine, kind: Kind) -> None:
    def ending(min_tokens: int):
        sampling = {"temperature": 1.0, "max_tokens": 40, "min_tokens": min_tokens}
        return [ask(kind.tokenizer, ENDING, seed=seed, **sampling) for seed in range(MAX_NUM_SEQS)]

    unlimited, waited = await answers(engine, ending(0)), await answers(engine, ending(30))
    assert min(len(whole.token_ids) for whole in unlimited) < 30, "no answer ended before, so nothing was shown"
    for whole in waited:
        assert len(whole.token_ids) >= 30
        assert not set(whole.token_ids) & set(kind.tokenizer.eos_token_ids)
        assert len(whole.token_ids) == 40 or whole.finish_reason is FinishReason.STOP


async def test_min_tokens_lengthens_an_answer_only_as_far_as_the_grammar_allows(engine: Engine, kind: Kind) -> None:
    free = await answer(engine, ask(kind.tokenizer, grammar="start: /[a-z ]{1,90}/", min_tokens=12, max_tokens=50))
    assert len(free.token_ids) >= 12 or len(free.text) == 90
    complete = await answer(engine, ask(kind.tokenizer, grammar='start: "yes" | "no"', min_tokens=12))
    assert (complete.text in ("yes", "no"), complete.finish_reason) == (True, FinishReason.STOP)


async def test_all_parameters_at_once_do_not_depend_on_the_batch(engine: Engine, kind: Kind) -> None:
    every = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 0, "min_tokens": 5, "logprobs": 2}
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
    every = {name: value for name, value in {**every, **penalties}.items() if name not in kind.refuses}
    alone = [await answer(engine, ask(kind.tokenizer, prompt, **every)) for prompt in PROMPTS[:3]]
    batched = (await asked(engine, kind, **every))[:3]
    if kind.same_share == 1:
        assert [(whole.text, whole.logprobs) for whole in batched] == [(whole.text, whole.logprobs) for whole in alone]
