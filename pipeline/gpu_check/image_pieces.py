"""Whether the packages of the image load, in the versions that requirements/image.txt pins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from pipeline.environment.enter import prepare
from pipeline.gpu_check.finding import NO_GPU, Figure, Finding
from pipeline.gpu_check.place import Place
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
_OURS: Final = ("serving.engines.paged.engine", "serving.kernels.triton.triton_kernels", "tasks.honeycomb.task")
_OURS_WITH_VLLM: Final = ("serving.engines.vllm.engine", "serving.engines.vllm.draft_worker")
_VERSION: Final = "import sys; from importlib.metadata import version; print(*(version(n) for n in sys.argv[1:]))"


def image_pieces(place: Place) -> Finding:
    """Versions and imports: with a GPU of an environment made of the image's pins, otherwise of those that are here."""
    pins = dict(_PINS.findall((ROOT / "requirements/image.txt").read_text("utf-8")))
    if place.has_gpu:
        try:
            python = prepare("image") / "bin/python"
        except SystemExit as error:
            return Finding(not_run=(f"the image's packages cannot be installed here: {error}",))
        return load(python, pins, (*_OURS, *_OURS_WITH_VLLM))
    pins.pop("vllm")
    found = load(Path(sys.executable), pins, _OURS)
    return Finding(found.figures, found.wrong, (f"vLLM's build for GPUs, and torch's: {NO_GPU}",))


def load(python: Path, pins: dict[str, str], ours: tuple[str, ...]) -> Finding:
    """Import each package and module with a Python; those that fail are named.

    Args:
        python: of the environment.
        pins: package → version that it must have.
        ours: modules of this repository.
    """
    asked = subprocess.run([python, "-c", _VERSION, *pins], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        return Finding(wrong=(f"{python}: {asked.stderr.splitlines()[-1]}",))
    versions = dict(zip(pins, asked.stdout.split(), strict=True))
    wrong = [
        f"{name} is {versions[name]}, pinned is {pin}"
        for name, pin in pins.items()
        if not _is_build_of(versions[name], pin)
    ]
    modules = [*(_NAMES.get(name, name.replace("-", "_")) for name in pins), *ours]
    if _fault(python, modules) is not None:
        wrong += [f"{module}: {fault}" for module in modules if (fault := _fault(python, [module])) is not None]
    return Finding((Figure("packages and modules that load", float(len(modules))),), tuple(wrong))


def _is_build_of(version: str, pin: str) -> bool:
    """Whether a version is the pinned one, or a build of it such as 2.13.0+cpu."""
    return version.partition("+")[0] == pin


def _fault(python: Path, modules: list[str]) -> str | None:
    """The last line of the error of importing these; None if they load."""
    done = subprocess.run(
        [python, "-c", "; ".join(f"import {module}" for module in modules)], cwd=ROOT, capture_output=True, text=True
    )
    return (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else None
