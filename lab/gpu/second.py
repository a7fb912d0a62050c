"""Runs the tests marked `gpu`, then the paged engine end to end on random weights; docs/gpu.md says how.

    python3 -m lab.gpu.second --json OUT [--seconds 200]

The file is written after each part, so that a run that is killed still tells something. Without a GPU the tests are
interpreted, and the engine computes a tiny model on the CPU, which shows that everything is there and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from lab.gpu.engine_answers import Answers, Variant, compare, variants
from lab.gpu.engine_checkpoint import MISTRAL_7B, TINY, write_checkpoint
from lab.gpu.engine_process import ask_apart
from lab.gpu.gpu_report import Run, StageReport
from lab.gpu.second_tests import INTERPRETED, run_tests
from serving.devices import has_cuda_device

_PACKAGES: Final = ("torch", "triton", "numpy", "safetensors", "tokenizers", "llguidance", "pydantic", "pytest")
_SHARE_OF_TESTS: Final = 0.5  # of the time, at most
_MOST_WORKERS: Final = 12
_ROOM: Final = 8 << 30  # bytes, for the weights of the 7B shape twice


class _Stages:
    """Runs stages one after the other, and writes the file at the start and the end of each."""

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self.run = Run(_about(device))

    def add(self, name: str, where: str, work: Callable[[StageReport], None]) -> None:
        """Run a stage."""
        report = StageReport(name, where)
        self.run.stages.append(report)
        self.run.write(self._path)
        print(f"{name} …", file=sys.stderr, flush=True)
        report.fill(work)
        self.run.write(self._path)


def main() -> None:
    """Run both parts and print a table; exit code 1 if something that ran is wrong."""
    begun = time.monotonic()
    options = _options()
    device = "cuda" if has_cuda_device() else "cpu"
    if torch.cuda.is_available() is not has_cuda_device():
        sys.exit(
            f"torch.cuda.is_available() is {torch.cuda.is_available()} and has_cuda_device() {has_cuda_device()}: "
            "check the driver's files (/dev/nvidia*), CUDA_VISIBLE_DEVICES and torch's build"
        )
    stages = _Stages(options.json, device)
    if options.tests:

        def test(report: StageReport) -> None:
            run_tests(
                report,
                marks="gpu" if device == "cuda" else INTERPRETED,
                paths=options.tests,
                workers=_workers(),
                log=options.json.with_suffix(".pytest.log"),
                seconds=_SHARE_OF_TESTS * options.seconds,
            )

        stages.add("tests", "GPU" if device == "cuda" else "Triton's interpreter, no GPU", test)
    with tempfile.TemporaryDirectory(dir=_scratch()) as folder:
        _run_engines(stages, Path(folder), device, deadline=begun + options.seconds)
    print(stages.run.table())
    sys.exit(int(any(stage.verdict == "WRONG" for stage in stages.run.stages)))


def _options() -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python3 -m lab.gpu.second",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, required=True, help="file for the result; pytest's log lies beside it")
    parser.add_argument("--seconds", type=float, default=200.0, help="for everything (default: 200)")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="files or folders of tests; none leaves them out")
    return parser.parse_args()


def _run_engines(stages: _Stages, folder: Path, device: str, *, deadline: float) -> None:
    config, shape = (MISTRAL_7B, "Mistral-7B's") if device == "cuda" else (TINY, "a tiny one")
    where = f"{'GPU' if device == 'cuda' else 'the CPU, no GPU'}; random weights, shape: {shape}"
    answers: dict[str, Answers] = {}

    def write(report: StageReport) -> None:
        write_checkpoint(folder, config, device=device)
        if device == "cuda":
            torch.cuda.empty_cache()  # for the engines
        report.add("checkpoint", "size", sum(path.stat().st_size for path in folder.iterdir()) / 2**20, "MiB")

    def asked(variant: Variant) -> Callable[[StageReport], None]:
        def work(report: StageReport) -> None:
            ask_apart(report, answers.setdefault(variant.name, {}), folder, device, variant, deadline)

        return work

    stages.add("checkpoint", where, write)
    for variant in variants(device):
        stages.add(f"engine, {variant.name}", where, asked(variant))
    stages.add("greedy answers", where, lambda report: compare(report, answers))


def _about(device: str) -> dict[str, Any]:
    name = f"no GPU: {platform.machine()}, {os.cpu_count()} cores"
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        name = f"{card.name}, {card.multi_processor_count} processors, {card.total_memory / 2**30:.0f} GiB"
    versions = {package: metadata.version(package) for package in _PACKAGES}
    return {
        "command": f"python3 -m lab.gpu.second {' '.join(sys.argv[1:])}",
        "machine": name,
        "versions": {"python": platform.python_version(), **versions},
    }


def _workers() -> int:
    """Processes of pytest: a quarter of the cores is left to the compilers that they start."""
    return max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) * 3 // 4))


def _scratch() -> Path | None:
    """Memory, if it has room for the weights; None: the disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _ROOM else None


if __name__ == "__main__":
    main()
