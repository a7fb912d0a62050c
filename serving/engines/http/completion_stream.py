"""Read the server-sent events of `/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from serving.clients.answer import EngineOutput
from serving.types import TokenLogprob

_DONE = b"[DONE]"
_ID = "token_id:"  # how vLLM writes a token in log probabilities


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event until the last, which says that the stream is done.

    Args:
        chunks: of the body, divided anywhere.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                if data == _DONE:
                    return
                yield data


def read_output(content: Mapping[str, Any], num_logprobs: int | None) -> EngineOutput | None:
    """The tokens of an event; None if it has only numbers of tokens.

    Args:
        content: of the event.
        num_logprobs: `SamplingParams.logprobs` of the request.

    Raises:
        KeyError, TypeError, ValueError: it is not of the form that vLLM gives.
    """
    if not content["choices"]:
        return None
    (choice,) = content["choices"]
    token_ids = [int(token) for token in choice["token_ids"]]
    reason = choice.get("finish_reason")
    return EngineOutput(
        token_ids,
        None if reason is None else str(reason),
        None if num_logprobs is None else _logprobs(token_ids, choice["logprobs"], num_logprobs),
    )


def _logprobs(token_ids: list[int], logprobs: Mapping[str, Any], count: int) -> list[TokenLogprob]:
    """vLLM gives `count` likeliest tokens, and the chosen one too if it is not among them."""
    result = []
    for token_id, logprob, top in zip(token_ids, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        entries = {int(key.removeprefix(_ID)): float(value) for key, value in (top or {}).items()}
        ranked = sorted(entries.items(), key=lambda entry: -entry[1])
        result.append(TokenLogprob(token_id, float(logprob), tuple(ranked[:count])))
    return result
