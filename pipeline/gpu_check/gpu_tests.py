"""Runs the tests marked `gpu`, which are the kernels' and the engine's with compiled kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

from pipeline.gpu_check.finding import NO_GPU, Figure, Finding
from pipeline.gpu_check.place import Place
from pipeline.paths import ROOT

FOLDERS: Final = ("tests/serving/kernels/triton", "tests/serving/engines/paged", "tests/pipeline/gpu_check")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) .*", re.MULTILINE)
_PASSED: Final = re.compile(r"(\d+) passed")


def gpu_tests(place: Place) -> Finding:
    """How many passed, and the names of those that did not."""
    if not place.has_gpu:
        return Finding(not_run=(f"tests marked gpu: {NO_GPU}; scripts/test runs most of them interpreted",))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rfE", "--tb=line", *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found_in(done.stdout + done.stderr, done.returncode)


def found_in(output: str, code: int) -> Finding:
    """What pytest's output says.

    Args:
        output: with a line for each failure (-rfE).
        code: pytest's exit code.
    """
    passed = _PASSED.search(output)
    figures = (Figure("tests passed", float(passed[1])),) if passed else ()
    wrong = tuple(_FAILED.findall(output))
    if code and not wrong:
        wrong = (f"pytest ended with {code}: {output[-1500:]}",)
    return Finding(figures, wrong)
