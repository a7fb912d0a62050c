"""An adapter that vLLM has loaded is held to its golden prompts; the client is a fake, its parameters are vLLM's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from serving.adapters.golden import GoldenPrompt
from serving.engines.vllm.adapters import check_golden
from serving.errors import WeightsError

pytestmark = pytest.mark.vllm
END = 0


class Llm:
    """Answers with the prompt's tokens and one more, then the end token, as far as max_tokens allows."""

    async def generate(self, prompt: Any, params: Any, number: str, *, lora_request: Any) -> AsyncIterator[Any]:
        assert (params.temperature, params.stop_token_ids, lora_request) == (0, [END], "lora")
        tokens = [*prompt["prompt_token_ids"], 9, END][: params.max_tokens]
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])


async def test_answers_are_compared_with_their_ends() -> None:
    whole, cut = GoldenPrompt((3, 4), (3, 4, 9), ends=True), GoldenPrompt((5, 6), (5, 6), ends=False)
    await check_golden(Llm(), "lora", (whole, cut), (END,))  # type: ignore[arg-type]
    for wrong in (GoldenPrompt((3, 4), (3, 8, 9), ends=True), GoldenPrompt((3,), (3,), ends=True)):
        with pytest.raises(WeightsError, match=r"line 2: .* at token 2 of"):
            await check_golden(Llm(), "lora", (whole, wrong), (END,))  # type: ignore[arg-type]
