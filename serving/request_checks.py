"""What makes a request wrong, said once for every engine and before anything is queued.

check_request(request, max_model_len=8192, vocab_size=49152, adapters=("sql",))
"""

from __future__ import annotations

import math
from collections.abc import Collection

from serving.errors import ContextLengthError, InvalidRequestError, UnknownAdapterError
from serving.types import GenerationRequest, SamplingParams

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20  # as OpenAI's API and vLLM have it
MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 256  # characters
_MAX_LISTED = 5  # adapters in an error
_DEFAULTS = SamplingParams()
# Inclusive. Outside of its bounds a repetition penalty makes logits overflow.
_RANGES = {
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}


def check_request(
    request: GenerationRequest,
    *,
    max_model_len: int,
    vocab_size: int,
    adapters: Collection[str] = (),
    unsupported: Collection[str] = (),
) -> None:
    """Refuse what no engine, or not this one, could answer.

    An answer that may grow past the context is fine, it ends there; the prompt must leave room for one token.
    `unsupported` names sampling parameters that the engine does not have.

    Raises:
        InvalidRequestError: or its subclass that says which limit was broken.
    """
    _check_prompt(request.prompt_token_ids, max_model_len, vocab_size)
    _check_sampling(request.sampling)
    refuse_parameters(request.sampling, unsupported)
    if request.adapter is not None and request.adapter not in adapters:
        raise UnknownAdapterError(f"adapter {request.adapter!r} is unknown; {_known(adapters, request.adapter)}")


def _known(adapters: Collection[str], name: str) -> str:
    """What a caller may ask for instead."""
    if "://" in name:
        return (
            "a source must begin with what the operator allows (ADAPTER_SOURCES), name a revision if it is hf://, and "
            "end with #sha256:…, the digest of its files"
        )
    if not adapters:
        return "this server has none: leave it out, or list it in adapters.yaml (ADAPTERS)"
    names = sorted(adapters)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"this server has {', '.join(names[:_MAX_LISTED])}{more}"


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


def refuse_parameters(sampling: SamplingParams, names: Collection[str], because: str = "") -> None:
    """Refuse parameters that an engine does not have, unless they are as good as not given.

    Raises:
        InvalidRequestError: names the first of them, its value, and the value that changes nothing.
    """
    for name in names:
        value, default = getattr(sampling, name), getattr(_DEFAULTS, name)
        if value != default:
            reason = because or "which this engine does not have"
            raise InvalidRequestError(f"{name} is {value}, {reason}; leave it at {default}")


def _check_sampling(sampling: SamplingParams) -> None:
    if sampling.max_tokens < 1:
        raise InvalidRequestError(f"max_tokens is {sampling.max_tokens}; at least 1 is needed")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {sampling.min_tokens}; give 0 to {sampling.max_tokens}, which is max_tokens"
        )
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise InvalidRequestError(f"temperature is {sampling.temperature}; give 0 (greedy) or more")
    if not 0 < sampling.top_p <= 1:
        raise InvalidRequestError(f"top_p is {sampling.top_p}; give a number above 0 and up to 1")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise InvalidRequestError(f"top_k is {sampling.top_k}; give 1 or more, or None for all tokens")
    for name, (low, high) in _RANGES.items():
        value = getattr(sampling, name)
        if not low <= value <= high:
            raise InvalidRequestError(f"{name} is {value}; give {low} to {high}")
    if sampling.seed is not None and not 0 <= sampling.seed <= MAX_SEED:
        raise InvalidRequestError(f"seed is {sampling.seed}; give 0 to {MAX_SEED}, or None for a fresh one")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs is {sampling.logprobs}; give 0 to {MAX_LOGPROBS}, or None for none")
    _check_stop(sampling.stop)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"there are {len(stop)} stop strings; give at most {MAX_STOP_STRINGS}")
    for string in stop:
        if not string:
            raise InvalidRequestError("a stop string is empty, which would end every text; remove it")
        if len(string) > MAX_STOP_LENGTH:
            raise InvalidRequestError(
                f"a stop string has {len(string)} characters; shorten {string[:20]!r}… to at most {MAX_STOP_LENGTH}"
            )
