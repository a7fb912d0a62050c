"""A request with an adapter gets that adapter's answer, whatever is computed beside it."""

from __future__ import annotations

import pytest

from serving.engine import Engine
from tests.conformance.asking import PROMPTS, answer, answers, ask
from tests.conformance.kinds import Kind


@pytest.fixture
def adapter(kind: Kind) -> str:
    if kind.adapter is None:
        pytest.skip("this engine has no adapters")
    return kind.adapter


async def test_an_adapter_answers_alone_as_in_a_batch_with_the_base(engine: Engine, kind: Kind, adapter: str) -> None:
    names = (None, adapter, None, adapter)
    batch = await answers(engine, [ask(kind.tokenizer, PROMPTS[i // 2], adapter=name) for i, name in enumerate(names)])
    for i, name in enumerate(names):
        alone = await answer(engine, ask(kind.tokenizer, PROMPTS[i // 2], adapter=name))
        assert alone.token_ids == batch[i].token_ids


async def test_a_grammar_holds_for_an_adapter(engine: Engine, kind: Kind, adapter: str) -> None:
    whole = await answer(engine, ask(kind.tokenizer, grammar="start: /[a-z]{20}/", adapter=adapter, max_tokens=60))
    assert len(whole.text) == 20 and whole.text.isalpha()
