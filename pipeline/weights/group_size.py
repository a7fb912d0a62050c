"""Choose the group size of an AWQ checkpoint, and check that it divides every layer and every GPU's part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .awq_checkpoint import linear_names
from .awq_format import NIBBLES
from .errors import CheckpointError
from .tensors import TensorSpec

GROUP_SIZES: Final = (128, 64, 32)  # from the least extra memory to the least error
_SPLIT_BY_INPUTS: Final = (
    "o_proj",
    "down_proj",
)  # each GPU has some inputs of these layers, of all others some outputs
_OF_KV_HEADS: Final = ("k_proj", "v_proj")


def choose_group_size(specs: Mapping[str, TensorSpec], config: Mapping[str, Any], tensor_parallel: int) -> int:
    """The largest of `GROUP_SIZES` that divides the inputs of every linear layer on every GPU.

    Args:
        specs: of the unquantized checkpoint.
        config: its config.json.
        tensor_parallel: number of GPUs that share each layer.

    Raises:
        CheckpointError: none does, or the layers cannot be shared by that many GPUs.
    """
    for group_size in GROUP_SIZES[:-1]:
        if _misfit(specs, config, tensor_parallel, group_size) is None:
            return group_size
    check_group_size(specs, config, tensor_parallel, GROUP_SIZES[-1])
    return GROUP_SIZES[-1]


def check_group_size(
    specs: Mapping[str, TensorSpec], config: Mapping[str, Any], tensor_parallel: int, group_size: int
) -> None:
    """Check that a group size divides the inputs of every linear layer on every GPU.

    Raises:
        CheckpointError: it does not, naming a layer; or the layers cannot be shared by that many GPUs.
    """
    if problem := _misfit(specs, config, tensor_parallel, group_size):
        raise CheckpointError(problem)


def _misfit(
    specs: Mapping[str, TensorSpec], config: Mapping[str, Any], tensor_parallel: int, group_size: int
) -> str | None:
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % tensor_parallel or (kv_heads % tensor_parallel and tensor_parallel % kv_heads):
        return (
            f"{tensor_parallel} GPUs cannot share {heads} attention heads and {kv_heads} KV heads; "
            "choose another --tensor-parallel"
        )
    layers = linear_names(dict(specs))
    if not layers:
        return "the checkpoint has no linear layers named model.layers.….q_proj and so on; it cannot be quantized"
    for name in layers:
        outputs, inputs = specs[f"{name}.weight"].shape
        by_inputs = name.endswith(_SPLIT_BY_INPUTS)
        # GPUs beyond the number of KV heads hold copies of them.
        parts = min(tensor_parallel, kv_heads) if name.endswith(_OF_KV_HEADS) else tensor_parallel
        whole, unit = (inputs, group_size) if by_inputs else (outputs, NIBBLES)
        if inputs % group_size or outputs % NIBBLES or whole % (parts * unit):
            shared = f", shared by {tensor_parallel} GPUs" if tensor_parallel > 1 else ""
            return (
                f"{name} has {inputs} inputs and {outputs} outputs{shared}: each GPU's inputs must divide by the "
                f"group size {group_size} and its outputs by {NIBBLES}; choose another --group-size"
                + (" or --tensor-parallel" if tensor_parallel > 1 else "")
            )
    return None
