"""Compares Triton's kernels with plain torch in float64, and a row's bits alone with those among others.

All memory that torch gives uninitialized is filled with NaN first: outputs, sums of splits, parts of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lab.gpu.gpu_report import StageReport
from lab.gpu.kernel_cases import FLOAT32, HALF, INTERPRETED, REAL, KernelCase, kernel_cases
from lab.gpu.place import Place, poisoned_memory


def check_errors(place: Place, report: StageReport) -> None:
    """‖out − exact‖ / ‖exact‖ of each kernel, the largest of several numbers of rows."""
    torch.manual_seed(1)
    with torch.device(place.device), torch.inference_mode(), poisoned_memory():
        for kernels, mode, half in place.modes():
            for case in kernel_cases(place, kernels):
                rows, limit = case.exact.shape[0], HALF if half else FLOAT32
                counts = sorted({1, 17, min(64, rows), rows})
                errors = [relative_error(case.run(0, count), case.exact[:count]) for count in counts]
                report.add(f"errors, {mode}", case.name, _worst(errors), limit=limit)
                if place.is_late:
                    report.not_run.append(f"kernels after {case.name}, {mode}: no time was left")
                    return


def check_bits(place: Place, report: StageReport) -> None:
    """How many numbers of a row differ between batches of different sizes, and between two runs; right is none."""
    torch.manual_seed(2)
    with torch.device(place.device), torch.inference_mode(), poisoned_memory():
        for kernels, mode, _ in place.modes():
            for case in kernel_cases(place, kernels):
                report.add(f"numbers that differ, {mode}", case.name, _differing(case, place), limit=0.0)
                if place.is_late:
                    report.not_run.append(f"kernels after {case.name}, {mode}: no time was left")
                    return


def _differing(case: KernelCase, place: Place) -> int:
    rows = case.exact.shape[0]
    whole = case.run(0, rows)
    count = int(whole.isnan().sum()) + int((case.run(0, rows) != whole).sum())
    for size in (REAL if place.has_gpu else INTERPRETED).rows[:-1]:
        for first in sorted({(rows - size) // 3, rows - size}):
            count += int((case.run(first, first + size) != whole[first : first + size]).sum())
    return count


def relative_error(found: Tensor, exact: Tensor) -> float:
    """‖found − exact‖ / ‖exact‖; NaN if anything is."""
    return float((found.double() - exact).norm() / exact.norm())


def _worst(errors: list[float]) -> float:
    return float(torch.tensor(errors, dtype=torch.float64, device="cpu").max())  # NaN, if there is one
