"""What machine this is, and how fast it copies memory and multiplies matrices: the two limits of a pass."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import torch

from lab.gpu.gpu_report import StageReport
from lab.gpu.place import Place, copy_rate

_ASKED = "name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw,power.limit"


def describe_gpu(place: Place, report: StageReport) -> None:
    """Versions, what the driver says of the card, and its measured rates."""
    report.texts["versions"] = ", ".join(
        f"{name} {_version(name)}" for name in ("torch", "triton", "numpy", "safetensors")
    )
    report.texts["system"] = platform.platform()
    if place.has_gpu:
        card = torch.cuda.get_device_properties(0)
        report.add("card", "compute capability", card.major + card.minor / 10)
        report.add("card", "multiprocessors", card.multi_processor_count)
        report.add("card", "L2", card.L2_cache_size / 2**20, "MiB")
        report.add("card", "memory", card.total_memory / 2**30, "GiB")
        report.texts["cuda"] = str(torch.version.cuda)
        if shutil.which("nvidia-smi"):
            command = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv"]
            report.texts["nvidia-smi"] = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    report.add("rates", "copying, bytes read and written", copy_rate(place.device) / 1e9, "GB/s")
    size = 8192 if place.has_gpu else 256
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (torch.randn(size, size, device=place.device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        seconds = place.seconds([lambda a=a, b=b, out=out: torch.mm(a, b, out=out)])  # type: ignore[misc]
        name = str(dtype).removeprefix("torch.")
        report.add("rates", f"torch's {name} matmul of {size}×{size}", 2 * size**3 / seconds / 1e12, "TFLOP/s")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
