"""Search and pack one checkpoint: the part of scripts/quantize_awq that runs in AutoAWQ's environment.

python -m pipeline.weights.quantize_job FOLDER    # of a `SearchState` with a job
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.weights.atomic import write_json, write_text
from pipeline.weights.awq_checkpoint import quantize_folder
from pipeline.weights.awq_search_result import AwqSearchResult, SearchState, save_search_result
from pipeline.weights.console import report_errors, say
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from pipeline.weights.sixteen_bits import leave_in_sixteen_bits
from pipeline.weights.tensors import Fingerprinted

_FILE = "job.json"


class QuantizeJob(BaseModel):
    """What scripts/quantize_awq was asked for; paths are absolute.

    Args:
        model: folder of the unquantized checkpoint.
        output: the new folder; None writes the search result alone.
        group_size: weights that share a scale.
        tensor_parallel: number of GPUs that may share a layer, for the report.
        texts: token ids of calibration texts, of at most a block each.
        save_search: file for the search result, if any.
        report: JSON file for what it took, if any.
        feedback_rank: principal components of each layer's inputs that error feedback uses; 0 rounds to nearest.
        sixteen_bits: see `leave_in_sixteen_bits`; None rounds all layers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    output: Path | None
    group_size: int
    tensor_parallel: int
    texts: list[list[int]]
    save_search: Path | None
    report: Path | None
    feedback_rank: int
    sixteen_bits: float | None

    def state(self) -> SearchState:
        """The state of the search, beside what it writes."""
        place = self.output or self.save_search
        assert place is not None, "the command wants one of them"
        return SearchState.beside(place)

    def save(self) -> None:
        """Write it where `run_job` finds it.

        Raises:
            CheckpointError: another process is at it.
        """
        with self.state().alone():
            write_text(self.state().folder / _FILE, self.model_dump_json())


def run_job(state: SearchState) -> None:
    """Search, write the search result, the checkpoint and the report, and remove the state.

    Raises:
        CheckpointError: the checkpoint cannot be used, or another process is at it.
    """
    with state.alone():
        job = QuantizeJob.model_validate_json((state.folder / _FILE).read_bytes())
        with warnings.catch_warnings(record=True):  # AutoAWQ prints a page about its deprecation
            from pipeline.weights.awq_search import search  # torch and AutoAWQ: slow to import

        times, source = [time.monotonic()], SafetensorsCheckpoint(job.model)
        fingerprint = Fingerprinted(source).fingerprint()
        times.append(time.monotonic())
        result = search(job.model, job.texts, job.group_size, fingerprint, state, feedback_rank=job.feedback_rank)
        if job.sixteen_bits is not None:
            result = leave_in_sixteen_bits(source, result, job.sixteen_bits)
        times.append(time.monotonic())
        if job.save_search is not None:
            save_search_result(job.save_search, result)
        if job.output is not None:
            quantize_folder(job.model, job.output, result)
        times.append(time.monotonic())
        if job.report is not None and job.output is not None:
            spans = (round(after - before, 1) for before, after in pairwise(times))
            seconds = dict(zip(("fingerprint", "search", "pack"), spans, strict=True))
            write_json(job.report, {**written(job.model, job.output, result), **_cost(job, seconds)})
        state.remove()
    say(f"Wrote {job.save_search}" if job.output is None else done(job.output))


def _cost(job: QuantizeJob, seconds: dict[str, float]) -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
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


def done(output: Path) -> str:
    """What to say of a checkpoint that was written."""
    return f"Wrote {output}; next: a task.json in it, and scripts/lock_weights"


def _num_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


if __name__ == "__main__":
    with report_errors():
        run_job(SearchState(Path(sys.argv[1])))
