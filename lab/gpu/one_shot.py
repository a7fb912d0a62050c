"""Checks and measures the kernels and the model on this machine's GPU within minutes; without one, what a CPU can show.

    python3 -m lab.gpu.one_shot --json out.json

It needs torch, numpy, safetensors and triton. The JSON is written after each stage, so that a run that is ended still
tells something. If a stage breaks its process, the next stages run in a new one. Exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from lab.gpu.gpu_report import Run, StageReport
from lab.gpu.stages import FURTHER, LIMITS, NO_GPU_CODE, REQUIRES_GPU
from pipeline.paths import ROOT

_TAIL = 2000  # characters of a broken process's errors


def main(arguments: list[str] | None = None, *, default: tuple[str, ...] = tuple(LIMITS), seconds: float = 250) -> int:
    """Run the command, with these stages and this time where the arguments name none; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=lambda text: Path(text).resolve(), required=True, help="file for the result")
    parser.add_argument("--seconds", type=float, default=seconds, help="what does not fit is left out (%(default)s)")
    parser.add_argument("--only", action="append", choices=(*LIMITS, *FURTHER), help="a stage; several are allowed")
    parser.add_argument("--require-gpu", action="store_true", help="exit with 1 at once if torch sees no GPU")
    given = parser.parse_args(arguments)
    if given.require_gpu:
        os.environ[REQUIRES_GPU] = "1"
    given.json.unlink(missing_ok=True)
    command = shlex.join(["python3", "-m", "lab.gpu.one_shot", *(arguments or sys.argv[1:])])
    Run({"command": command}).write(given.json)
    run = run_stages(given.json, given.seconds, list(given.only or default))
    print(run.table())
    return int(not run.stages or any(stage.verdict == "WRONG" for stage in run.stages))


def run_stages(out: Path, seconds: float, names: list[str]) -> Run:
    """Run stages in a process, and in a new one those after a stage that broke it."""
    deadline = time.monotonic() + seconds
    while True:
        run = Run.read(out)
        todo = names[len(run.stages) :]
        left = deadline - time.monotonic()
        if not todo:
            return run
        code, errors = run_worker(out, left, todo)
        found = Run.read(out)
        if code == NO_GPU_CODE:
            print("--require-gpu: torch sees no GPU here", file=sys.stderr)
            return found
        has_begun = len(found.stages) > len(run.stages)
        if not has_begun:
            found.stages.append(StageReport(todo[0], "no process"))
        last = found.stages[-1]
        if last.status == "running":
            last.status = "broken"
            last.wrong.append(f"the process ended with {code}: {errors[-_TAIL:]}")
            found.write(out)
        if not has_begun:  # the next process would end too
            return found


def run_worker(out: Path, seconds: float, names: list[str]) -> tuple[int | str, str]:
    """Run stages in one process, which writes them to `out`; returns its exit code and its errors."""
    command = [sys.executable, "-m", "lab.gpu.stages", str(out), f"{seconds:.1f}", *names]
    worker = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert worker.stderr is not None
    for line in worker.stderr:
        print(line, end="", file=sys.stderr, flush=True)
        lines.append(line)
    return worker.wait(), "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
