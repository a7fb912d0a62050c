"""The configuration with which vLLM loads our drafter; needs no vLLM."""

from __future__ import annotations

from typing import Any

WRITTEN_FOR = "0.32"  # the version of vLLM whose names `draft_worker` uses
DEFAULT_MAX_DRAFTS = 48  # with 32 an answer of the default model takes 4.0 steps, with 48 3.6
_FEWEST_BATCHED_TOKENS = 2048  # vLLM's smallest default
WORKER = "serving.engines.vllm.draft_worker.DraftWorker"
PROPOSER = "serving.engines.vllm.draft_worker.DraftProposer"


def draft_config(max_drafts: int | None, *, max_num_seqs: int, is_cpu: bool) -> dict[str, Any]:
    """vLLM's `speculative_config` for our drafter.

    Args:
        max_drafts: limit of the drafts of a request in one step; None for the default.
        max_num_seqs: limit of running requests.
        is_cpu: whether vLLM computes on the CPU.
    """
    count = max_drafts or DEFAULT_MAX_DRAFTS
    config: dict[str, Any] = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": count}
    if is_cpu:
        # With the number fixed, vLLM fills a prompt that is cached but for one token with `count` placeholders, for the
        # sake of CUDA graphs: 108 ms instead of 29 for the first token of the default model.
        config["num_speculative_tokens_per_batch_size"] = [[1, max_num_seqs, count]]
    return config


def room_with_adapters(max_num_batched_tokens: int | None, *, max_num_seqs: int) -> int:
    """Drafts of a request in one step with which vLLM accepts adapters: those of all requests have to fit one step.

    Args:
        max_num_batched_tokens: tokens in one step; None for vLLM's own number.
        max_num_seqs: limit of running requests.
    """
    return (max_num_batched_tokens or _FEWEST_BATCHED_TOKENS) // max_num_seqs - 1


def version_fault(version: str) -> str | None:
    """Why our drafter does not work with this version of vLLM; None if it does."""
    if version.split(".")[:2] == WRITTEN_FOR.split("."):
        return None
    return f"they were written for vLLM {WRITTEN_FOR}, and this is {version}"
