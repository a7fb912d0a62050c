"""What the settings ask of the paged engine, checked against the checkpoint.

Owns: defaults that depend on the model, and refusing by name what this engine does not do. Knows
nothing of how the parts work.

    num_blocks = settings.num_blocks or default_num_blocks(settings, max_model_len)
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.config import Settings
from serving.draft_model import DraftModel
from serving.draft_weights import DRAFT_MODEL, Array
from serving.draft_words import Words
from serving.errors import ContextLengthError, EngineNotAvailableError
from serving.kernels.base import Activations
from serving.models.config import ModelConfig
from serving.ngrams import DRAFT_TABLE, NgramTable
from serving.paged.draft import Drafter, NoDrafter
from serving.paged.speculation import SpeculativeDrafter
from serving.text import Tokenizer


def activations(settings: Settings) -> Activations:
    """What DTYPE means for this engine, which sums up in float32 always.

    Raises:
        EngineNotAvailableError: a type that it does not compute with.
    """
    if settings.dtype not in ("auto", "float32"):
        raise EngineNotAvailableError(
            f"DTYPE={settings.dtype} is vLLM's; with ENGINE=paged set auto (inputs of 4-bit matmuls are "
            "rounded: faster) or float32 (nothing is rounded)"
        )
    return Activations.FLOAT32 if settings.dtype == "float32" else Activations.BFLOAT16


def make_drafter(settings: Settings, tokenizer: Tokenizer, embedding: Tensor, row_cost: float) -> Drafter:
    """What the settings ask for, with the table and the draft model that came with the weights if they did.

    Args:
        settings: whose they are.
        tokenizer: of the model.
        embedding: [V, H] of the model, which a draft model shares.
        row_cost: of one more row in a pass, as a share of a pass without rows.

    Raises:
        EngineNotAvailableError: the kind of speculation is another engine's.
        WeightsError: the draft model was made for another checkpoint, or is none.
    """
    if settings.speculation == "off":
        return NoDrafter()
    if settings.speculation != "auto":
        raise EngineNotAvailableError(
            f"SPECULATION={settings.speculation} is vLLM's; with ENGINE=paged set auto or off"
        )
    folder, plain = settings.weights_dir, tokenizer.without_space
    has_table, has_model = ((folder / name).is_file() for name in (DRAFT_TABLE, DRAFT_MODEL))
    return SpeculativeDrafter(
        NgramTable.load(folder / DRAFT_TABLE) if has_table else None,
        DraftModel.load(folder / DRAFT_MODEL, as_numpy(embedding), Words(tokenizer)) if has_model else None,
        row_cost=row_cost,
        plain=plain,
    )


def as_numpy(tensor: Tensor) -> Array:
    """In place where it is in the CPU's memory; bfloat16 as its bits."""
    tensor = tensor.detach().cpu()
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def max_model_len(settings: Settings, config: ModelConfig) -> int:
    """Tokens of a request, prompt and answer.

    Raises:
        ContextLengthError: MAX_MODEL_LEN is over the model's own context.
    """
    wanted = settings.max_model_len
    if wanted is not None and wanted > config.max_position_embeddings:
        raise ContextLengthError(
            f"MAX_MODEL_LEN is {wanted} and the model's context {config.max_position_embeddings}; lower it"
        )
    return wanted or config.max_position_embeddings


def default_num_blocks(settings: Settings, longest: int) -> int:
    """Room for one request of `longest` tokens, and for an ordinary one of 384 for each of 32 requests.

    With the default model that is 566 MB, or half of it where they are bfloat16. On a CPU up to 512 MiB,
    and at most a fourth of what the machine has left, are taken soon after the start, the rest as it is used.
    """
    num_tokens = max(longest, 384 * min(32, settings.max_num_seqs))
    return -(-num_tokens // settings.block_size)


def busy_limit(config: ModelConfig, max_num_batched_tokens: int) -> float:
    """Seconds of computing for the largest step on a processor slower than any sensible one, at least 8.

    So a hang of the default model is known within 10 s; 7 billion parameters on a CPU get minutes.
    """
    shape, hidden = config.attention, config.hidden_size
    projections = hidden * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
    parameters = config.num_layers * (projections + 3 * hidden * config.intermediate_size)
    slow_processor = 20e9  # floating-point operations a second
    return max(8.0, 2.0 * parameters * max_num_batched_tokens / slow_processor)
