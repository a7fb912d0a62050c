"""Refuse requests that the engine's KV cache has no room for, however long they wait."""

from __future__ import annotations

from collections.abc import Collection

from serving.engines.paged.block_manager import BlockManager
from serving.errors import ContextLengthError
from serving.request_checks import check_request
from serving.types import GenerationRequest


def check_fit(
    request: GenerationRequest,
    blocks: BlockManager,
    *,
    max_model_len: int,
    vocab_size: int,
    adapters: Collection[str],
) -> None:
    """Check a request before it is queued; see `check_request`.

    Args:
        request: what was asked.
        blocks: all blocks that there are.
        max_model_len: limit of prompt and output tokens.
        vocab_size: token ids of prompts must be below it.
        adapters: names that requests may have.

    Raises:
        InvalidRequestError: or its subclass that says which limit was broken.
    """
    check_request(request, max_model_len=max_model_len, vocab_size=vocab_size, adapters=adapters)
    longest = min(len(request.prompt_token_ids) + request.sampling.max_tokens, max_model_len)
    needed = blocks.num_blocks_for(longest - 1)  # the last token is never fed to the model
    if needed > blocks.num_blocks:
        raise ContextLengthError(
            f"the prompt's {len(request.prompt_token_ids)} tokens and max_tokens "
            f"{request.sampling.max_tokens} need {needed} KV blocks of {blocks.block_size} tokens, "
            f"and there are {blocks.num_blocks}; ask for fewer tokens, or set NUM_BLOCKS higher"
        )
