"""Runs the tests marked `gpu` under pytest in several processes, and reads its log, also if it must be stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.gpu.gpu_report import StageReport
from pipeline.paths import ROOT

INTERPRETED: Final = "interpreted and not gpu"  # the same tests on a CPU
_ENDED: Final = re.compile(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (\S.*)$", re.MULTILINE)
_SLOWEST: Final = re.compile(r"^(\d+\.\d+)s call +(\S.*)$", re.MULTILINE)
_LONGEST_REPORT: Final = 20_000  # characters


def run_tests(
    report: StageReport, *, marks: str, paths: Sequence[str], workers: int, log: Path, seconds: float
) -> None:
    """Count the tests that passed within so many seconds, and say which failed; the log receives pytest's output."""
    command = [sys.executable, "-m", "pytest", "-m", marks, "-n", str(workers), "-vv", "--tb=short", "--durations=8"]
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    code = None
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *paths],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": threads},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its workers end with it
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    read_log(report, log.read_text(encoding="utf-8", errors="replace"), code)


def read_log(report: StageReport, text: str, code: int | None) -> None:
    """Add what pytest's log says, with xdist and -vv; the exit code is None if pytest was stopped."""
    ended = _ENDED.findall(text)
    outcomes = Counter(outcome for outcome, _ in ended)
    report.add("tests", "passed", outcomes["PASSED"])
    report.add("tests", "failed", outcomes["FAILED"] + outcomes["ERROR"], limit=0)
    report.add("tests", "skipped", outcomes["SKIPPED"])
    for seconds, name in _SLOWEST.findall(text):
        report.add("slowest tests", name, float(seconds), "s")
    failed = [name for outcome, name in ended if outcome in ("FAILED", "ERROR")]
    report.wrong += [f"failed: {name}" for name in failed]
    if code is None:
        report.not_run.append("the rest of the tests: no time was left")
    elif code and not failed:
        report.wrong.append(f"pytest ended with {code}: {text[-2000:]}")
    if code != 0:
        report.texts["end of pytest's output"] = text[-_LONGEST_REPORT:]
