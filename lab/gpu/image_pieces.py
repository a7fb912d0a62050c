"""Whether the packages of the image load, in the versions that requirements/image.txt pins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from lab.gpu.gpu_report import StageReport
from lab.gpu.place import Place
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT

_PINS: Final = re.compile(r"^([\w.-]+)==([\w.]+)", re.MULTILINE)
# Import name of a package, where it is not the package's with underscores.
_NAMES: Final = {
    "pyyaml": "yaml",
    "opentelemetry-api": "opentelemetry.trace",
    "opentelemetry-sdk": "opentelemetry.sdk.trace",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
# What is this repository's own, and needs the GPU's builds of others.
_OURS: Final = ("serving.engines.paged.engine", "serving.kernels.triton.kernels", "tasks.honeycomb.task")
_OURS_WITH_VLLM: Final = ("serving.engines.vllm.engine", "serving.engines.vllm.draft_worker")
_VERSION: Final = "import sys; from importlib.metadata import version; print(*(version(n) for n in sys.argv[1:]))"


def image_pieces(place: Place, report: StageReport) -> None:
    """Versions and imports: with a GPU of an environment made of the image's pins, otherwise of those that are here."""
    pins = dict(_PINS.findall((ROOT / "requirements/image.txt").read_text("utf-8")))
    if place.has_gpu:
        load(report, installed_environment("image") / "bin/python", pins, (*_OURS, *_OURS_WITH_VLLM))
        return
    pins.pop("vllm")
    load(report, Path(sys.executable), pins, _OURS)
    report.not_run.append("vLLM's and torch's builds for GPUs: there is no GPU")


def load(report: StageReport, python: Path, pins: dict[str, str], ours: tuple[str, ...]) -> None:
    """Import each package, whose version must be the one of its pin, and our modules; those that fail are named."""
    asked = subprocess.run([python, "-c", _VERSION, *pins], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        report.wrong.append(f"{python}: {asked.stderr.splitlines()[-1]}")
        return
    for (name, pin), found in zip(pins.items(), asked.stdout.split(), strict=True):
        if found.partition("+")[0] != pin:  # it may be a build of it, such as 2.13.0+cpu
            report.wrong.append(f"{name} is {found}, pinned is {pin}")
    modules = [*(_NAMES.get(name, name.replace("-", "_")) for name in pins), *ours]
    if _fault(python, modules) is not None:
        report.wrong += [f"{module}: {fault}" for module in modules if (fault := _fault(python, [module])) is not None]
    report.add("the image", "packages and modules that load", len(modules))


def _fault(python: Path, modules: list[str]) -> str | None:
    """The last line of the error of importing these; None if they load."""
    done = subprocess.run(
        [python, "-c", "; ".join(f"import {module}" for module in modules)], cwd=ROOT, capture_output=True, text=True
    )
    return (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else None
