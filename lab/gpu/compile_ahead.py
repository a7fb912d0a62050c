"""Compiles the kernels that models launch, in several processes, and says what each needs of a multiprocessor.

A process launches nothing: it runs the model's own code on a driver that only compiles. So all that is compiled has the
arguments of real launches, later launches of the same kernels find them in Triton's cache, and no GPU is needed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from lab.gpu.gpu_report import StageReport
from lab.gpu.place import Place
from lab.gpu.random_model import CONFIGS, LARGE, MIDDLE, SMALL, TINY, PassModel, blocks_of
from pipeline.paths import ROOT
from serving.devices import available_cores
from serving.kernels.lora import LoraAdapter, LoraBatch, LoraMatrices, LoraSegment

_HOPPER: Final = 90  # compute capability of what is compiled where there is no GPU
_HOPPER_SHARED: Final = 227 << 10  # bytes of shared memory of a block
_ROWS: Final = (1, 17, 33)  # each with another tile
_SIZES: Final = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Job:
    """A layer of a model of `random_model`, with the head and adapters, or without them where other tiles are tried."""

    model: str
    half: bool
    rows: int
    tiles: dict[str, int] = field(default_factory=dict)


def compile_variants(place: Place, report: StageReport) -> None:
    """Registers, spilled bytes and shared memory of each kernel, of the three models and both modes."""
    names = (LARGE, MIDDLE, SMALL) if place.has_gpu else (TINY,)
    counts = _ROWS if place.has_gpu else _ROWS[:1]
    jobs = [Job(name, half, count) for name in names for half in (True, False) for count in counts]
    found, faults = compile_jobs(jobs, seconds=place.deadline - time.monotonic())
    report.wrong += faults
    where: dict[str, set[str]] = {}
    for sizes, label in found:
        where.setdefault(sizes, set()).add(label)
    for sizes, labels in sorted(where.items()):
        capability, kernel, warps, registers, stack, shared = json.loads(sizes)
        group = f"{kernel}, sm_{capability}, {warps} warps"
        report.add(group, f"{min(labels)} and {len(labels) - 1} more: registers", registers)
        # Without rounding, which is for comparisons, some spill.
        report.add(group, "stack", stack, "bytes", limit=0.0 if any("float16" in label for label in labels) else None)
        report.add(group, "shared", shared, "bytes")


def compile_jobs(jobs: Sequence[Job], seconds: float) -> tuple[set[tuple[str, str]], list[str]]:
    """Run jobs in as many processes as there are cores.

    Returns:
        Sizes of kernels as JSON, each with the job that launched it; errors of processes.
    """
    count = min(len(jobs), available_cores())
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    deadline = time.monotonic() + seconds
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "lab.gpu.compile_ahead", json.dumps([asdict(job) for job in jobs[first::count]])],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(count)
    ]
    found, faults = set[tuple[str, str]](), list[str]()
    for worker in workers:
        try:
            output, errors = worker.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
            output, errors = worker.communicate()
            errors += f"stopped after {seconds:.0f} s"
        if worker.returncode:
            faults.append(f"a compiling process ended with {worker.returncode}: {errors[-1500:]}")
        lines = (line.partition("\t") for line in output.splitlines())
        found |= {(sizes, label) for sizes, tab, label in lines if tab}
    return found, faults


def main(jobs: list[Job]) -> int:
    """Run jobs in this process, and print each kernel that was compiled; returns the exit code."""
    import triton

    driver, code = _Driver(), 0
    triton.runtime.driver.set_active(driver)
    for job in jobs:
        driver.loaded.clear()
        try:
            _run(job)
        except Exception as error:
            if not job.tiles:  # of those that are tried, some do not go together
                print(f"{job}: {type(error).__name__}: {error}", file=sys.stderr)
                code = 1
        label = f"{job.model}, {'float16' if job.half else 'float32'}, {job.rows} rows"
        for kernel, binary, *others in driver.loaded:
            registers, stack = _resources(binary)
            kinds = [driver.capability, kernel, others[0], registers, stack, others[1]]
            print(f"{json.dumps(kinds)}\t{label}", flush=True)
    return code


class _Driver:
    """Stands for Triton's driver: loads nothing and launches nothing, but keeps what would be loaded."""

    def __init__(self) -> None:
        card = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
        self.capability = 10 * card.major + card.minor if card else _HOPPER
        self._shared = getattr(card, "shared_memory_per_block_optin", _HOPPER_SHARED) if card else _HOPPER_SHARED
        self._has_gpu = card is not None
        self._warps = 0
        self.utils = self
        self.loaded: list[tuple[str, bytes, int, int]] = []

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._shared}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        if self._has_gpu:
            from triton.backends.nvidia.driver import CudaLauncher

            CudaLauncher(source, metadata)  # compiles the call itself, which Triton keeps too
        self._warps = metadata.num_warps
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.loaded.append((name, binary, self._warps, shared))
        return 0, 0, 0, 0, 1024


def _run(job: Job) -> None:
    """Launch all kernels of a layer, of the head and of adapters."""
    from serving.kernels.triton.kernels import TritonKernels
    from serving.kernels.triton.tiles import TileSizes

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernels = TritonKernels(device, half=job.half, tiles=TileSizes(**job.tiles))
    spans, config = [(512, 512 + job.rows)], replace(CONFIGS[job.model], num_layers=1)
    if job.tiles:
        config = replace(config, vocab_size=256)
    model = PassModel(config, kernels, device, blocks_of(spans))
    with torch.inference_mode():
        hidden = model.forward(model.inputs(spans))
        if job.tiles:
            return
        model.model.compute_logits(hidden)
        first, two_a_word = torch.zeros(1, dtype=torch.int32), torch.full((1, config.vocab_size // 32), 3).int()
        model.model.compute_allowed_logits(hidden, first, two_a_word, config.vocab_size)
        adapter = LoraAdapter((_adapter(model.model.weights.decoder.projections),))
        model.forward(model.inputs(spans), LoraBatch((LoraSegment(0, job.rows, adapter),)))


def _adapter(projections: Sequence[tuple[int, int]]) -> tuple[LoraMatrices, ...]:
    return tuple(LoraMatrices(torch.zeros(16, a).half(), torch.zeros(16, b).half(), 1.0) for a, b in projections)


def _resources(binary: bytes) -> tuple[int, int]:
    """Registers, and bytes of the stack, which spilled registers need."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(program) if program.exists() else "cuobjdump", "--dump-resource-usage", file.name]
        found = _SIZES.search(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found is not None, "cuobjdump names no resources"
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    sys.exit(main([Job(**one) for one in json.loads(sys.argv[1])]))
