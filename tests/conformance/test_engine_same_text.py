"""Every engine gives the same greedy text as transformers in float32.

An engine that computes in another precision agrees with the paged engine as often as was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from serving.config import Settings
from serving.engine import Engine
from tests.conformance.asking import PROMPTS, answers, ask
from tests.conformance.kinds import MAX_MODEL_LEN, WEIGHTS, Kind

GRAMMARS = [None, "start: /[a-z ]{40}/", 'start: "{" ("\\"a\\": " /[0-9]{1,6}/ | "\\"b\\": true") "}"']


@pytest.fixture(scope="module")
def reference(kind: Kind) -> Iterator[Engine]:
    if kind.model_dir is None or kind.is_reference:
        pytest.skip("no model that transformers computes in float32, or the reference itself")
    from tests.conformance import transformers_engine

    reference = transformers_engine.create(Settings(weights_dir=kind.model_dir, max_model_len=MAX_MODEL_LEN))
    yield reference
    reference.close()


@pytest.mark.parametrize("grammar", GRAMMARS)
async def test_greedy_text_is_that_of_transformers(
    engine: Engine, reference: Engine, kind: Kind, grammar: str | None
) -> None:
    prompts = [*PROMPTS[:8], "a", PROMPTS[0] * 6]  # also one token, and several chunks
    requests = [ask(kind.tokenizer, prompt, grammar=grammar, max_tokens=16) for prompt in prompts]
    expected, found = await answers(reference, requests), await answers(engine, requests)
    for a, b in zip(expected, found, strict=True):
        assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)


async def test_greedy_queries_equal_those_of_the_paged_engine_as_often_as_measured(engine: Engine, kind: Kind) -> None:
    if kind.agreement is None:
        pytest.skip("the paged engine itself, or no model that both can load")
    from tests.conformance import agreement

    asked = agreement.questions(WEIGHTS)
    assert len(asked) >= 50
    found = await agreement.texts(engine, asked)
    with closing(agreement.reference(WEIGHTS)) as paged:
        expected = await agreement.texts(paged, asked)
    assert agreement.count_same(expected, found) >= kind.agreement * len(asked)
