"""Search and pack one checkpoint: the part of scripts/quantize_awq that runs in AutoAWQ's environment.

python -m pipeline.weights.quantize_job FOLDER    # of a `SearchState` with a job
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.weights.atomic import write_json
from pipeline.weights.awq_checkpoint import quantize_folder
from pipeline.weights.awq_search_result import AwqSearchResult, SearchState
from pipeline.weights.checkpoint_config import unquantized_config
from pipeline.weights.console import report_errors, say
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.sixteen_bits import leave_in_sixteen_bits

_FILE = "job.json"


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """What scripts/quantize_awq was asked for.

    Args:
        model: folder of the unquantized checkpoint.
        output: the new folder.
        group_size: weights that share a scale.
        tensor_parallel: number of GPUs that may share a layer.
        texts: token ids of calibration texts.
        save_search: file for the search result, if any.
        report: JSON file for what it took, if any.
        feedback_rank: principal components of each layer's inputs that error feedback uses; 0 rounds to nearest.
        sixteen_bits: how many of the linear weights stay in 16 bits, 0 … 1; None rounds all.
    """

    model: str
    output: str
    group_size: int
    tensor_parallel: int
    texts: Sequence[Sequence[int]]
    save_search: str | None
    report: str | None
    feedback_rank: int
    sixteen_bits: float | None

    def save(self, state: SearchState) -> None:
        """Write it where `load` finds it."""
        write_json(state.folder / _FILE, asdict(self))

    @classmethod
    def load(cls, state: SearchState) -> QuantizeJob:
        """The job that was saved."""
        return cls(**json.loads((state.folder / _FILE).read_text("utf-8")))


def run_job(state: SearchState) -> None:
    """Search, write the checkpoint and the report, and remove the state.

    Raises:
        CheckpointError: the checkpoint cannot be used, or another process is at it.
    """
    with state.alone():
        job = QuantizeJob.load(state)
        model, output = Path(job.model), Path(job.output)
        with warnings.catch_warnings(record=True):  # AutoAWQ prints a page about its deprecation
            from pipeline.weights.awq_search import search  # torch and AutoAWQ: slow to import

        seconds: dict[str, float] = {}

        def timed_search(fingerprint: str) -> AwqSearchResult:
            seconds["fingerprint"] = round(time.monotonic() - start, 1)
            result = search(model, job.texts, job.group_size, fingerprint, state, feedback_rank=job.feedback_rank)
            if job.sixteen_bits is not None:
                result = leave_in_sixteen_bits(SafetensorsCheckpoint(model), result, job.sixteen_bits)
            seconds["search"] = round(time.monotonic() - start - seconds["fingerprint"], 1)
            return result

        start = time.monotonic()
        save_search = Path(job.save_search) if job.save_search else None
        result = quantize_folder(model, unquantized_config(model), output, timed_search, save_search)
        seconds["pack"] = round(time.monotonic() - start - sum(seconds.values()), 1)
        if job.report is not None:
            write_json(Path(job.report), _report(job, result, seconds))
        state.remove()
    say(f"Wrote {output}; next: a task.json in it, and scripts/lock_weights")


def _report(job: QuantizeJob, result: AwqSearchResult, seconds: dict[str, float]) -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **written(Path(job.model), Path(job.output), result),
        "feedback_rank": job.feedback_rank,
        "tensor_parallel": job.tensor_parallel,
        "calibration_tokens": sum(map(len, job.texts)),
        "seconds": seconds,
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
    }


def written(model: Path, output: Path, result: AwqSearchResult) -> dict[str, Any]:
    """What a report says of the checkpoint that was written, however its search result came about."""
    return {
        "model": model.name,
        "output": output.name,
        "group_size": result.group_size,
        "sixteen_bits": sorted(result.sixteen_bits),
        "made_with": result.made_with,
        "bytes_before": _num_bytes(model),
        "bytes_after": _num_bytes(output),
    }


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


if __name__ == "__main__":
    with report_errors():
        run_job(SearchState(Path(sys.argv[1])))
