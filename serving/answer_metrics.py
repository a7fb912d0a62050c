"""Writes the metrics of an answer, by the names and in the forms that Cog reports.

Log probabilities have the form of OpenAI's `logprobs.content`. A token trace says where each token came from, pass by
pass, for the playground.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import EngineStats, RequestMetrics, TokenLogprob, TokenPass

# Log probabilities of tokens that are excluded or negligible. JSON has no infinity; OpenAI and vLLM write this.
NEGLIGIBLE = -9999.0
Entry = dict[str, "str | float | list[int] | list[Entry]"]
# For each pass: milliseconds since the engine accepted the request, and its tokens as [text, source].
# Lists, because Cog's metrics take no tuples.
Trace = list[list[float | list[list[str]]]]


def reported(metrics: RequestMetrics, stats: EngineStats) -> dict[str, Any]:
    """The metrics of an answer by name; the first two are what Replicate shows for language models."""
    found: dict[str, Any] = {
        "input_token_count": metrics.input_token_count,
        "output_token_count": metrics.output_token_count,
        "model_passes": metrics.model_passes,
        "tokens_per_second": metrics.tokens_per_second,
        "cached_token_count": metrics.cached_token_count,
    }
    if metrics.draft_token_count:
        found["draft_token_count"] = metrics.draft_token_count
        found["accepted_token_count"] = metrics.accepted_token_count
    if drafted := metrics.drafted_by_kind:
        found["drafted_by_kind"], found["accepted_by_kind"] = drafted, metrics.accepted_by_kind
    if stats.num_blocks:
        found["kv_cache_usage"] = 1 - stats.num_free_blocks / stats.num_blocks
    if metrics.time_to_first_token is not None:
        found["time_to_first_token"] = metrics.time_to_first_token
    return found


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


def token_trace(passes: Sequence[TokenPass], token_ids: Sequence[int], tokenizer: Tokenizer) -> Trace:
    """The answer's tokens with their sources. Of a character that several tokens make, the last one has it.

    A stop string may have cut off the last of the tokens that the passes gave.
    """
    detokenizer = IncrementalDetokenizer(tokenizer)
    texts = iter([detokenizer.push([token_id]) for token_id in token_ids])
    # `zip` asks a pass for its next source first, so that no text is lost where a pass ends.
    given = [[[text, source] for source, text in zip(one.sources, texts, strict=False)] for one in passes]
    return [[round(one.at * 1000, 2), tokens] for one, tokens in zip(passes, given, strict=True) if tokens]
