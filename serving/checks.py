"""What makes a request wrong, said once for every engine.

Owns: the limits of a request and the words that explain them. Knows nothing of queues or of
grammars, which only an engine can compile. Called before anything is queued.

    check_request(request, max_model_len=8192, vocab_size=49152, adapters=("honeycomb",))
"""

from __future__ import annotations

import math
from collections.abc import Collection

from serving.errors import ContextLengthError, InvalidRequestError, UnknownAdapterError
from serving.types import GenerationRequest, SamplingParams

MAX_SEED = 2**63 - 1


def check_request(
    request: GenerationRequest, *, max_model_len: int, vocab_size: int, adapters: Collection[str] = ()
) -> None:
    """Refuse what no engine could answer.

    An answer that may grow past the context is fine, it ends there; the prompt must leave room for
    one token.

    Raises:
        InvalidRequestError: or its subclass that says which limit was broken.
    """
    _check_prompt(request.prompt_token_ids, max_model_len, vocab_size)
    _check_sampling(request.sampling)
    if request.adapter is not None and request.adapter not in adapters:
        known = ", ".join(sorted(adapters)) or "none"
        raise UnknownAdapterError(f"adapter {request.adapter!r} is unknown; this engine has: {known}")


def _check_prompt(prompt: tuple[int, ...], max_model_len: int, vocab_size: int) -> None:
    if not prompt:
        raise InvalidRequestError("the prompt has no tokens; give at least one")
    if len(prompt) >= max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and the model's context {max_model_len}, of which one is "
            f"for the answer; shorten the prompt to {max_model_len - 1} tokens"
        )
    if not (min(prompt) >= 0 and max(prompt) < vocab_size):
        wrong = next(token for token in prompt if not 0 <= token < vocab_size)
        raise InvalidRequestError(f"prompt token {wrong} is outside the vocabulary of {vocab_size} tokens")


def _check_sampling(sampling: SamplingParams) -> None:
    if sampling.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens is {sampling.max_tokens}; at least 1 is needed")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise InvalidRequestError(f"temperature is {sampling.temperature}; give 0 (greedy) or more")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequestError(f"top_p is {sampling.top_p}; give a number above 0 and up to 1")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InvalidRequestError(f"top_k is {sampling.top_k}; give 1 or more, or None for all tokens")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        raise InvalidRequestError(f"seed is {sampling.seed}; give 0 to {MAX_SEED}, or None for a fresh one")
    if "" in sampling.stop:
        raise InvalidRequestError("a stop string is empty, which would end every text; remove it")
