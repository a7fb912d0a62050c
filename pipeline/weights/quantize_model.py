"""Quantizes a checkpoint folder to AWQ, with a new search or with an earlier search result, in groups that fit it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from pipeline.environment.enter import installed_environment
from pipeline.paths import ENVIRONMENT
from pipeline.weights.atomic import write_json
from pipeline.weights.awq_checkpoint import linear_names, quantize_folder
from pipeline.weights.awq_format import NIBBLES
from pipeline.weights.awq_search_result import load_search_result, save_search_result
from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.quantize_job import QuantizeJob, done, written
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.sixteen_bits import leave_in_sixteen_bits
from pipeline.weights.tensors import Fingerprinted, TensorSpec

MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3")
FEEDBACK_RANK: Final = 32
# AutoAWQ frees and takes the same large blocks all the time; keep them instead of asking the system.
_ALLOCATOR: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30)}

_QUIET: Final = {"TQDM_DISABLE": "1"}  # one bar of ours instead of AutoAWQ's for each layer
GROUP_SIZES: Final = (128, 64, 32)  # from the least extra memory to the least error
_SPLIT_BY_INPUTS: Final = ("o_proj", "down_proj")  # each GPU has some of their inputs, of all others some outputs
_OF_KV_HEADS: Final = ("k_proj", "v_proj")


def group_size_of(model: Path, wanted: int | None, tensor_parallel: int) -> int:
    """The group size to quantize a checkpoint with; says which one it is.

    Args:
        model: folder of the unquantized checkpoint.
        wanted: by the user; None chooses.
        tensor_parallel: number of GPUs that may share a layer.

    Raises:
        CheckpointError: the checkpoint cannot be quantized, or not with this group size.
    """
    config, specs = unquantized_config(model), SafetensorsCheckpoint(model).specs()
    if (model_type := config.get("model_type")) not in MODEL_TYPES:
        raise CheckpointError(f"{model} is of model_type {model_type!r}; {', '.join(MODEL_TYPES)} can be quantized")
    if wanted is not None:
        return choose_group_size(specs, config, tensor_parallel, (wanted,))
    chosen = choose_group_size(specs, config, tensor_parallel)
    parts = f" in {tensor_parallel} parts, one for each GPU" if tensor_parallel > 1 else ""
    say(f"Group size {chosen}: the largest that divides the inputs of every layer{parts}")
    return chosen


def quantize_with_search(job: QuantizeJob) -> NoReturn:
    """Search for scales and clips, and write the AWQ folder: goes on as a program in AutoAWQ's environment.

    Called again with the same job after it was killed, it continues at the layer that it had reached.

    Raises:
        CheckpointError: another process writes to this folder.
    """
    python = installed_environment("awq") / "bin" / "python"
    job.save()
    say(f"Searching on {sum(map(len, job.texts)):,} tokens")
    environment = {**_ALLOCATOR, **_QUIET, **os.environ, **ENVIRONMENT}
    command = [str(python), "-m", "pipeline.weights.quantize_job", str(job.state().folder)]
    os.execve(python, command, environment)


def quantize_with_earlier_search(
    model: Path,
    output: Path,
    earlier: Path,
    *,
    save_search: Path | None,
    feedback: bool = True,
    sixteen_bits: float | None = None,
    report: Path | None = None,
) -> None:
    """Write the AWQ folder with the scales and clips of an earlier search, with which the model was trained.

    Args:
        model: folder of the unquantized checkpoint.
        earlier: file of the search result.
        save_search: file for the result with this model's fingerprint, if any.
        feedback: whether to use the result's moments for error feedback, if it has any.
        sixteen_bits: see `leave_in_sixteen_bits`; None leaves what the earlier result leaves.
        report: JSON file for what was written, if any.

    Raises:
        CheckpointError: the model or the search result cannot be used.
    """
    unquantized_config(model)  # before anything takes long
    source, result = SafetensorsCheckpoint(model), load_search_result(earlier)
    if not feedback:
        result = replace(result, feedback_groups=())
    if sixteen_bits is not None:
        result = leave_in_sixteen_bits(source, result, sixteen_bits)
    result = replace(result, fingerprint=Fingerprinted(source).fingerprint())
    if save_search is not None:
        save_search_result(save_search, result)
    quantize_folder(model, output, result)
    if report is not None:
        write_json(report, written(model, output, result))
    say(done(output))


def choose_group_size(
    specs: Mapping[str, TensorSpec],
    config: Mapping[str, Any],
    tensor_parallel: int,
    sizes: Sequence[int] = GROUP_SIZES,
) -> int:
    """The first of some sizes that divides the inputs of every linear layer on every GPU.

    Raises:
        CheckpointError: none does, and the message names a layer; or the layers cannot be shared by that many GPUs.
    """
    problem = None
    for group_size in sizes:
        if (problem := _misfit(specs, config, tensor_parallel, group_size)) is None:
            return group_size
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
