"""The configuration with which vLLM loads our drafter; needs no vLLM."""

from __future__ import annotations

from typing import Any

WRITTEN_FOR = "0.32"  # the version of vLLM whose names `draft_worker` uses
DEFAULT_MAX_DRAFTS = 48  # with 32 an answer of the default model takes 4.0 steps, with 48 3.6
_FEWEST_BATCHED_TOKENS = 2048  # vLLM's smallest default
_MEMORY_SHARE = 0.5  # part of the free memory for the logits of drafts; a step needs the rest for other things
# Bytes for each draft and token of the vocabulary while vLLM 0.32 samples with top-p, read from its rejection sampler:
# the logits (4 in float32), two copies in float32, their sorted values and places (4 and 8), probabilities and a mask.
_LOGIT_BYTES = 29
WORKER = "serving.engines.vllm.draft_worker.DraftWorker"
PROPOSER = "serving.engines.vllm.draft_worker.DraftProposer"


def draft_config(max_drafts: int | None) -> dict[str, Any]:
    """vLLM's `speculative_config` for our drafter; `max_drafts` are those of a request and step, None the default."""
    count = max_drafts or DEFAULT_MAX_DRAFTS
    return {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": count,
        # One number for all sizes of batches, as the last range goes on. Without this table vLLM takes the number as
        # fixed. It then records CUDA graphs for multiples of `count` + 1 rows only, to which it pads steps, and fills a
        # prompt that is cached but for one token with `count` placeholders: on a CPU 108 ms instead of 29 for the
        # first token of the default model.
        "num_speculative_tokens_per_batch_size": [[1, 1, count]],
    }


def drafts_that_fit(free_bytes: int, *, vocab_size: int, num_requests: int) -> int:
    """Drafts of each request in one step whose logits take at most half of the free memory; may be 0.

    vLLM reserves memory for the logits of one draft a request.

    Args:
        free_bytes: memory that nothing uses between steps.
        vocab_size: logits of a draft.
        num_requests: requests in the step.
    """
    return int(_MEMORY_SHARE * free_bytes) // (_LOGIT_BYTES * vocab_size * num_requests)


def room_with_adapters(max_num_batched_tokens: int | None, *, max_num_seqs: int) -> int:
    """Drafts of a request in one step with which vLLM accepts adapters: those of all requests have to fit one step.

    None for `max_num_batched_tokens`, the tokens in one step, is vLLM's own number.
    """
    return (max_num_batched_tokens or _FEWEST_BATCHED_TOKENS) // max_num_seqs - 1


def version_fault(version: str) -> str | None:
    """Why our drafter does not work with this version of vLLM; None if it does."""
    if version.split(".")[:2] == WRITTEN_FOR.split("."):
        return None
    return f"they were written for vLLM {WRITTEN_FOR}, and this is {version}"
