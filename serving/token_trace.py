"""Describes where each token of an answer came from, pass by pass, for the playground."""

from __future__ import annotations

from collections.abc import Sequence

from serving.text import IncrementalDetokenizer, Tokenizer
from serving.types import TokenPass

# Of each pass: milliseconds since the engine accepted the request, and its tokens as [text, source].
# Lists, because Cog's metrics take no tuples.
Trace = list[list[float | list[list[str]]]]


def token_trace(passes: Sequence[TokenPass], token_ids: Sequence[int], tokenizer: Tokenizer) -> Trace:
    """The answer's tokens with their sources.

    Args:
        passes: of the request's metrics.
        token_ids: of the answer. A stop string may have cut off the last of those that the passes gave.
        tokenizer: maps tokens to text. Of a character that several tokens make, the last one has it.
    """
    detokenizer = IncrementalDetokenizer(tokenizer)
    texts = iter([detokenizer.push([token_id]) for token_id in token_ids])
    # `zip` asks a pass for its next source first, so that no text is lost where a pass ends.
    given = [[[text, source] for source, text in zip(one.sources, texts, strict=False)] for one in passes]
    return [[round(one.at * 1000, 2), tokens] for one, tokens in zip(passes, given, strict=True) if tokens]
