"""Lists the environments and their requirement files, and tells whether an environment is complete."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from pipeline.paths import CODE
from serving.devices import has_cuda_device

# dev adds packages to cpu in the same folder; the others need versions that conflict with it.
ENVIRONMENTS = {
    "cpu": ".venv",
    "dev": ".venv",
    "awq": ".venv-awq",
    "image": ".venv-image",  # what the image has, on a machine with a GPU
    "vllm-gpu": ".venv-image",  # and what scripts need beside it
    "vllm": ".venv-vllm",
    "vllm-suffix": ".venv-vllm",
    "llama": ".venv-llama",
    "replicate2": ".venv-replicate2",
    "clients": ".venv-clients",
    "llama-index": ".venv-llama-index",
    "ray": ".venv-ray",
    "ray-data": ".venv-ray-data",
    "modal": ".venv-modal",
    "sbom": ".venv-sbom",
    "storage": ".venv-storage",
    "storage-servers": ".venv-storage-servers",
}
# Environment → the one that must be installed into the same folder first, because its packages are built with that.
BUILT_ON = {"vllm-suffix": "vllm", "vllm-gpu": "image"}
_FILES = {"vllm-gpu": "cpu"}  # where it is not the name's


def is_current(venv: Path, name: str) -> bool:
    """Whether `venv` was installed completely from the present requirement files of `name`, for this machine."""
    state = read_state(venv)
    return (venv / "bin" / "python").exists() and state.get(name) == digest(name) and has_torch_of_machine(state)


def has_torch_of_machine(state: dict[str, str]) -> bool:
    """Whether an environment has PyTorch's CUDA build where there is a GPU that $DEVICE does not leave idle.

    That build runs without a GPU too.
    """
    return state.get("torch") == "cuda" or os.environ.get("DEVICE") == "cpu" or not has_cuda_device()


def read_state(venv: Path) -> dict[str, str]:
    """What `venv` has: environment name → digest of the requirement files it was installed from; torch → cpu or cuda.

    It is {"installing": name} during an installation.
    """
    try:
        return dict(json.loads((venv / "installed.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def digest(name: str) -> str:
    """A hash of all requirement files of environment `name`."""
    below = requirement_files(BUILT_ON[name]) if name in BUILT_ON else []
    files = [*below, *included(name), *requirement_files(name)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def included(name: str) -> list[Path]:
    """The files that requirements/NAME.txt includes (`-r cpu.txt`)."""
    file = requirement_files(name)[0]
    lines = file.read_text("utf-8").splitlines()
    return [file.parent / line[3:].strip() for line in lines if line.startswith("-r ")]


def requirement_files(name: str) -> list[Path]:
    """requirements/NAME.txt and, if it exists, NAME.no-deps.txt, in the order in which they are installed."""
    file = CODE / "requirements" / f"{_FILES.get(name, name)}.txt"
    if not file.exists():
        sys.exit(f"requirements/{file.name} is missing in {CODE}.")
    no_deps = file.with_suffix(".no-deps.txt")
    return [file, no_deps] if no_deps.exists() else [file]
