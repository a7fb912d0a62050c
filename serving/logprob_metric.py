"""Writes log probabilities as a prediction's metric, in the form of OpenAI's `logprobs.content`."""

from __future__ import annotations

from collections.abc import Iterable

from serving.text import Tokenizer
from serving.types import TokenLogprob

# Log probabilities of tokens that are excluded or negligible. JSON has no infinity; OpenAI and vLLM write this.
NEGLIGIBLE = -9999.0
Entry = dict[str, "str | float | list[int] | list[Entry]"]


def logprob_metric(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> list[Entry]:
    """One object for each token: `token`, `bytes`, `logprob`, and the likeliest tokens as `top_logprobs`."""
    return [
        _entry(one.token_id, one.logprob, tokenizer)
        | {"top_logprobs": [_entry(token_id, logprob, tokenizer) for token_id, logprob in one.top]}
        for one in logprobs
    ]


def _entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> Entry:
    content = tokenizer.token_bytes(token_id)  # a part of a character is no text, so the bytes are given as well
    return {
        "token": content.decode(errors="replace"),
        "bytes": list(content),
        "logprob": max(logprob, NEGLIGIBLE),
    }
