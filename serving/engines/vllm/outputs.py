"""Ask vLLM's client for a request's outputs, in the form that all engines of this kind share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from serving.clients.answer import EngineOutput
from serving.errors import EngineDeadError
from serving.types import GenerationRequest, TokenLogprob

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


async def outputs(
    llm: AsyncLLM, request: GenerationRequest, params: Any, lora: Any = None
) -> AsyncIterator[EngineOutput]:
    """Generate; closing the iterator makes vLLM abort the request.

    Args:
        llm: vLLM's client.
        request: the caller's request.
        params: vLLM's sampling parameters for it.
        lora: vLLM's request for an adapter.

    Raises:
        Exception: any error of vLLM.
    """
    prompt: Any = {"prompt_token_ids": list(request.prompt_token_ids)}
    async for output in llm.generate(prompt, params, request.request_id, lora_request=lora):
        yield engine_output(output, request.sampling.logprobs)


def engine_output(output: RequestOutput, num_logprobs: int | None) -> EngineOutput:
    """One output of vLLM.

    Args:
        output: its only completion is taken.
        num_logprobs: `SamplingParams.logprobs` of the request.

    Raises:
        EngineDeadError: vLLM gave up the request, for example because its grammar failed.
    """
    completion = output.outputs[0]
    if completion.finish_reason == "error":
        raise EngineDeadError("vLLM ended the answer with an error; its log says why")
    return EngineOutput(
        completion.token_ids,
        completion.finish_reason,
        None if num_logprobs is None else _logprobs(completion, num_logprobs),
        output.num_cached_tokens or 0,
    )


def _logprobs(completion: CompletionOutput, count: int) -> list[TokenLogprob]:
    """vLLM gives a dict for each token, with the likeliest tokens and the chosen one."""
    if not completion.token_ids:
        return []
    assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
    result = []
    for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        ranked = sorted((entry.rank, other, entry.logprob) for other, entry in entries.items())
        top = tuple((other, logprob) for rank, other, logprob in ranked if rank <= count)
        result.append(TokenLogprob(token_id, entries[token_id].logprob, top))
    return result
