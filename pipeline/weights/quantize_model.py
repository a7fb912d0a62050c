"""Quantize a checkpoint folder to AWQ, with a new search or with an earlier search result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from pipeline.environment.enter import prepare
from pipeline.paths import ENVIRONMENT
from pipeline.weights.awq_search_file import load_search_result
from pipeline.weights.console import say
from pipeline.weights.errors import CheckpointError
from pipeline.weights.group_size import check_group_size, choose_group_size
from pipeline.weights.quantize import quantize_folder, read_config
from pipeline.weights.quantize_job import QuantizeJob
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.search_state import SearchState

MODEL_TYPES: Final = ("llama", "mistral", "qwen2", "qwen3")
FEEDBACK_RANK: Final = 32
# AutoAWQ frees and takes the same large blocks all the time; keep them instead of asking the system.
_ALLOCATOR: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30)}

_QUIET: Final = {"TQDM_DISABLE": "1"}  # one bar of ours instead of AutoAWQ's for each layer


def group_size_of(model: Path, wanted: int | None, tensor_parallel: int) -> int:
    """The group size to quantize a checkpoint with; says which one it is.

    Args:
        model: folder of the unquantized checkpoint.
        wanted: by the user; None chooses.
        tensor_parallel: number of GPUs that may share a layer.

    Raises:
        CheckpointError: the checkpoint cannot be quantized, or not with this group size.
    """
    config, specs = read_config(model), SafetensorsCheckpoint(model).specs()
    if (model_type := config.get("model_type")) not in MODEL_TYPES:
        raise CheckpointError(f"{model} is of model_type {model_type!r}; {', '.join(MODEL_TYPES)} can be quantized")
    if wanted is None:
        chosen = choose_group_size(specs, config, tensor_parallel)
        say(f"Group size {chosen}: the largest that divides the inputs of every layer on {tensor_parallel} GPU(s)")
        return chosen
    check_group_size(specs, config, tensor_parallel, wanted)
    return wanted


def quantize_with_search(
    model: Path,
    output: Path,
    texts: Sequence[Sequence[int]],
    *,
    group_size: int,
    tensor_parallel: int = 1,
    feedback_rank: int = FEEDBACK_RANK,
    save_search: Path | None = None,
    report: Path | None = None,
) -> NoReturn:
    """Search for scales and clips, and write the AWQ folder: goes on as a program in AutoAWQ's environment.

    Called again with the same arguments after it was killed, it continues at the layer that it had reached.

    Args:
        model: folder of the unquantized checkpoint.
        output: the new folder.
        texts: token ids of calibration texts, of at most a block each.
        group_size: weights that share a scale.
        tensor_parallel: number of GPUs that may share a layer, for the report.
        feedback_rank: principal components of each layer's inputs that error feedback uses; 0 rounds to nearest.
        save_search: file for the search result, if any.
        report: JSON file for what it took, if any.

    Raises:
        CheckpointError: another process writes to this folder.
    """
    python = prepare("awq") / "bin" / "python"
    state = SearchState.beside(output.absolute())
    with state.alone():
        QuantizeJob(
            model=str(model.absolute()),
            output=str(output.absolute()),
            group_size=group_size,
            tensor_parallel=tensor_parallel,
            texts=texts,
            save_search=None if save_search is None else str(save_search.absolute()),
            report=None if report is None else str(report.absolute()),
            feedback_rank=feedback_rank,
        ).save(state)
    say(f"Searching on {sum(map(len, texts)):,} tokens")
    environment = {**_ALLOCATOR, **_QUIET, **os.environ, **ENVIRONMENT}
    os.execve(python, [str(python), "-m", "pipeline.weights.quantize_job", str(state.folder)], environment)


def quantize_with_earlier_search(
    model: Path, output: Path, earlier: Path, *, save_search: Path | None, feedback: bool = True
) -> None:
    """Write the AWQ folder with the scales and clips of an earlier search, with which the model was trained.

    Args:
        model: folder of the unquantized checkpoint.
        output: the new folder.
        earlier: file of the search result.
        save_search: file for the result with this model's fingerprint, if any.
        feedback: whether to use the result's moments for error feedback, if it has any.

    Raises:
        CheckpointError: the model or the search result cannot be used.
    """
    config, result = read_config(model), load_search_result(earlier)
    if not feedback:
        result = result.without_feedback()
    quantize_folder(model, config, output, result.for_checkpoint, save_search)
    say(f"Wrote {output}; next: a task.json in it, and scripts/lock_weights")
