"""Sampling parameters as vLLM names and counts them, for its Python and its HTTP interface."""

from __future__ import annotations

from typing import Any

from serving.errors import InvalidRequestError
from serving.request_checks import refuse_parameters
from serving.text import Tokenizer
from serving.types import GenerationRequest


def vllm_parameters(
    request: GenerationRequest, *, tokenizer: Tokenizer, max_model_len: int, speculates: bool
) -> dict[str, Any]:
    """All parameters but the constraint; without stop strings, which our detokenizer finds.

    `check_request` has accepted the request. `speculates` is whether vLLM verifies drafts; False if that is not known.

    Raises:
        InvalidRequestError: vLLM does not support a parameter, or would change it.
    """
    _refuse(request, speculates)
    ours = request.sampling
    # vLLM counts the end token towards max_tokens, this package does not. The difference is visible only with a
    # grammar: an answer that is complete at max_tokens must still end normally, so it gets one more token.
    places_for_end = 0 if request.constraint is None else 1
    max_tokens = min(ours.max_tokens + places_for_end, max_model_len - len(request.prompt_token_ids))
    return {
        "max_tokens": max_tokens,
        "min_tokens": min(ours.min_tokens, max_tokens),
        "temperature": ours.temperature,
        "top_p": ours.top_p,
        "top_k": ours.top_k if ours.top_k is not None else 0,
        "min_p": ours.min_p,
        "repetition_penalty": ours.repetition_penalty,
        "presence_penalty": ours.presence_penalty,
        "frequency_penalty": ours.frequency_penalty,
        "logprobs": ours.logprobs,
        "seed": ours.seed,
        "stop_token_ids": list(tokenizer.eos_token_ids),
    }


def _refuse(request: GenerationRequest, speculates: bool) -> None:
    """Refuse parameters that vLLM 0.32 does not support, or implements with another meaning."""
    sampling = request.sampling
    if sampling.temperature > 2 or 0 < sampling.temperature < 0.01:
        raise InvalidRequestError(f"temperature is {sampling.temperature}; vLLM takes 0 (greedy), or 0.01 to 2")
    if speculates:
        refuse_parameters(sampling, ("min_p",), because="which vLLM does not have with speculation")
    if request.constraint is not None:
        because = "and under a constraint vLLM would give those among the allowed tokens only"
        refuse_parameters(sampling, ("logprobs",), because=because)
