"""Ask an adapter that vLLM has loaded its golden prompts, before other requests get its answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from serving.adapters.golden import GoldenPrompt, check_answer

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


async def check_golden(llm: AsyncLLM, lora: Any, prompts: Sequence[GoldenPrompt], end_tokens: tuple[int, ...]) -> None:
    """Wait for all answers; to be run on the client's loop.

    Args:
        llm: vLLM's client.
        lora: vLLM's LoRARequest.
        prompts: of the adapter's folder.
        end_tokens: ids that end an answer.

    Raises:
        WeightsError: an answer differs from the merged model's.
    """
    answers = await asyncio.gather(*(_ask(llm, lora, golden, end_tokens) for golden in prompts))
    for number, (golden, (tokens, ended)) in enumerate(zip(prompts, answers, strict=True), start=1):
        check_answer(number, golden, tokens, ended=ended)


async def _ask(
    llm: AsyncLLM, lora: Any, golden: GoldenPrompt, end_tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        temperature=0,
        max_tokens=golden.max_tokens,
        stop_token_ids=list(end_tokens),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt: Any = {"prompt_token_ids": list(golden.prompt)}
    tokens: Sequence[int] = ()
    async for output in llm.generate(prompt, params, f"golden-{uuid.uuid4().hex}", lora_request=lora):
        tokens = output.outputs[0].token_ids
    answer = tuple(token for token in tokens if token not in end_tokens)
    return answer, len(answer) < len(tokens)
