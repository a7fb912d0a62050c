"""Ask an adapter its golden prompts, before other requests get its answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from serving.adapters.golden import GoldenPrompt, check_answer
from serving.engines.paged.core import EngineCore
from serving.engines.paged.request import Request
from serving.kernels.lora import LoraAdapter
from serving.types import FinishReason, GenerationRequest, SamplingParams


class GoldenCheck:
    """Asks in a batch with the requests that run, so that these go on.

    Args:
        core: the model's thread.
        check_fit: raises if a request, which names no adapter, could never be answered.
    """

    def __init__(self, core: EngineCore, check_fit: Callable[[GenerationRequest], None]) -> None:
        self._core = core
        self._check_fit = check_fit

    def __call__(self, name: str, lora: LoraAdapter, prompts: Sequence[GoldenPrompt]) -> None:
        """Wait for all answers; to be called in a thread without an event loop.

        Args:
            name: of the adapter.
            lora: the adapter.
            prompts: of its folder.

        Raises:
            WeightsError: an answer differs from the merged model's.
            ServingError: a prompt cannot be answered.
        """
        if prompts:
            asyncio.run(self._ask_all(name, lora, prompts))

    async def _ask_all(self, name: str, lora: LoraAdapter, prompts: Sequence[GoldenPrompt]) -> None:
        answers = await asyncio.gather(*(self._ask(name, lora, prompt) for prompt in prompts))
        for number, (golden, (tokens, ended)) in enumerate(zip(prompts, answers, strict=True), start=1):
            check_answer(number, golden, tokens, ended=ended)

    async def _ask(self, name: str, lora: LoraAdapter, golden: GoldenPrompt) -> tuple[tuple[int, ...], bool]:
        request = GenerationRequest(
            f"golden-{secrets.token_hex(8)}", golden.prompt, SamplingParams(max_tokens=golden.max_tokens)
        )
        self._check_fit(request)
        # Under a name of its own, which no request can have: if the adapter is refused, nothing that it computed is
        # found later in the prefix cache.
        named = replace(request, adapter=f"golden prompts of {name}")
        stream = self._core.open(request.request_id)
        tokens: list[int] = []
        try:
            self._core.submit(stream, Request(named, seed=0, lora=lora))
            while True:
                event = await self._core.receive(stream)
                tokens += event.token_ids
                if event.finish_reason is not None:
                    return tuple(tokens), event.finish_reason is FinishReason.STOP
        finally:
            self._core.discard(stream)
