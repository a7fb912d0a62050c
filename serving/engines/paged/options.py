"""The paged engine's own defaults, and its refusal of values that only other engines have."""

from __future__ import annotations

from serving.adapters.adapter_folders import memory_bytes
from serving.config import Settings
from serving.drafting.drafter import Drafter
from serving.drafting.load_drafter import DraftModelLoader, load_drafter
from serving.drafting.speculative import StepCost
from serving.errors import ContextLengthError, SettingError
from serving.kernels.base import Activations
from serving.kernels.select import Device
from serving.models.config import ModelConfig

DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
DEFAULT_BLOCK_SIZE = 16
DEFAULT_MAX_DRAFT_TOKENS = 128


def activations(settings: Settings) -> Activations:
    """What inputs of linear layers are rounded to with this DTYPE; sums are always float32.

    Raises:
        SettingError: this engine does not support the DTYPE.
    """
    if settings.dtype not in ("auto", "float32"):
        raise SettingError(
            f"DTYPE={settings.dtype} is vLLM's; with ENGINE=paged set auto (inputs of linear layers are "
            "rounded: faster) or float32 (nothing is rounded)"
        )
    return Activations.FLOAT32 if settings.dtype == "float32" else Activations.BFLOAT16


def max_draft_tokens(settings: Settings) -> int:
    """Limit of drafts of a request in one step.

    Raises:
        SettingError: MAX_DRAFT_TOKENS is set although drafts are off.
    """
    if settings.speculation == "off":
        if settings.is_set("max_draft_tokens"):
            raise SettingError(
                f"MAX_DRAFT_TOKENS={settings.max_draft_tokens} would be ignored with SPECULATION=off; unset one of them"
            )
        return 0
    return settings.max_draft_tokens or DEFAULT_MAX_DRAFT_TOKENS


def make_drafter(settings: Settings, models: DraftModelLoader, cost: StepCost) -> Drafter:
    """The drafter that the settings ask for, with the n-gram table and the draft model of the weights, if any.

    Raises:
        SettingError: this engine does not support the value of SPECULATION.
        WeightsError: a file of the drafter is invalid, or was made for another checkpoint.
    """
    if settings.speculation == "off":
        return Drafter()
    if settings.speculation != "auto":
        raise SettingError(f"SPECULATION={settings.speculation} is vLLM's; with ENGINE=paged set auto or off")
    return load_drafter(settings.weights_dir, models, cost)


def adapter_bytes(settings: Settings) -> int:
    """Limit of all loaded adapters together; 0 if requests may name none."""
    return 0 if settings.adapters is None and settings.adapter_sources is None else memory_bytes(settings)


def max_model_len(settings: Settings, config: ModelConfig) -> int:
    """Limit of prompt and output tokens of a request.

    Raises:
        ContextLengthError: MAX_MODEL_LEN exceeds the model's context length.
    """
    limit = settings.max_model_len
    if limit is not None and limit > config.max_position_embeddings:
        raise ContextLengthError(
            f"MAX_MODEL_LEN={limit} exceeds the model's context length of {config.max_position_embeddings}; lower it"
        )
    return limit or config.max_position_embeddings


def default_num_blocks(longest: int, *, max_num_seqs: int, block_size: int) -> int:
    """Blocks for one request of `longest` tokens, or for up to 32 requests of 768 tokens, whichever is more.

    With the default model they take 604 MB in float32 and half of that in bfloat16. On a CPU their memory is allocated
    after the start up to 512 MiB and a quarter of the available memory, the rest when it is first used.
    """
    num_tokens = max(longest, 768 * min(32, max_num_seqs))
    return -(-num_tokens // block_size)


def long_share(row_cost: float, max_num_batched_tokens: int) -> int:
    """Tokens of a long prompt in a step with other requests: their rows cost half as much as a step without any.

    These are 17 tokens in the default arithmetic on a CPU, and 50 on a GPU.
    """
    return max(1, min(round(0.5 / row_cost), max_num_batched_tokens // 2))


def busy_limit(config: ModelConfig, max_num_batched_tokens: int, device: Device) -> float:
    """CPU time in seconds after which a step is considered to hang: that of the largest step on a very slow CPU.

    For the default model it is 8 s, for 7 billion parameters minutes. Triton's interpreter, which is for tests, may
    take 10 minutes: it needs milliseconds for each tile.
    """
    if device is Device.TRITON_INTERPRETER:
        return 600.0
    shape, hidden = config.attention, config.hidden_size
    projections = hidden * shape.head_dim * 2 * (shape.num_heads + shape.num_kv_heads)
    parameters = config.num_layers * (projections + 3 * hidden * config.intermediate_size)
    slow_cpu = 20e9  # floating-point operations a second
    return max(8.0, 2.0 * parameters * max_num_batched_tokens / slow_cpu)
