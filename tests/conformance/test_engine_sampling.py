"""Greedy is deterministic; the same seed gives the same sample; 0 is a seed."""

from __future__ import annotations

import pytest

from serving.engine import Engine
from tests.conformance.asking import PROMPTS, answer, answers, ask
from tests.conformance.kinds import Kind


async def texts(engine: Engine, kind: Kind, count: int, **sampling) -> list[str]:
    """Texts of the same request, asked several times in sequence."""
    return [(await answer(engine, ask(kind.tokenizer, **sampling))).text for _ in range(count)]


async def test_greedy_is_deterministic_for_any_seed(engine: Engine, kind: Kind) -> None:
    assert len(set(await texts(engine, kind, 3))) == 1
    assert len({(await texts(engine, kind, 1, seed=seed))[0] for seed in (None, 0, 1)}) == 1


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
async def test_the_same_seed_gives_the_same_sample(engine: Engine, kind: Kind, seed: int) -> None:
    assert len(set(await texts(engine, kind, 3, temperature=1.5, seed=seed))) == 1


async def test_different_seeds_and_no_seed_give_different_samples(engine: Engine, kind: Kind) -> None:
    seeded = [(await texts(engine, kind, 1, temperature=1.5, seed=seed))[0] for seed in range(4)]
    unseeded = await texts(engine, kind, 3, temperature=1.5)
    assert len(set(seeded)) > 1 and len(set(unseeded)) > 1


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
async def test_sampling_from_one_token_is_greedy(engine: Engine, kind: Kind, narrow: dict[str, float]) -> None:
    if kind.refuses & narrow.keys():
        pytest.skip("refused, which test_engine_refusals.py shows")
    greedy = await texts(engine, kind, 1)
    assert await texts(engine, kind, 1, temperature=2.0, seed=3, **narrow) == greedy


async def test_a_seeded_sample_does_not_depend_on_the_batch(engine: Engine, kind: Kind) -> None:
    alone = await texts(engine, kind, 1, temperature=1.0, seed=5)
    crowd = [ask(kind.tokenizer, prompt, temperature=1.0, seed=5) for prompt in PROMPTS[:7]]
    batched = await answers(engine, crowd)
    assert kind.same_share < 1 or batched[0].text == alone[0]


async def test_a_seed_holds_for_a_prompt_that_is_computed_in_chunks(engine: Engine, kind: Kind) -> None:
    request = {"prompt": PROMPTS[0] * 8, "temperature": 1.5, "seed": 7, "max_tokens": 12}
    assert len(kind.tokenizer.encode(request["prompt"])) > 70
    found = set(await texts(engine, kind, 2, **request))
    assert kind.same_share < 1 or len(found) == 1  # the second reuses its prompt's KV and may round differently
