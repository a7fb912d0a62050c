"""A clean Python, as on a GPU machine without network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.environment.install import load_uv
from pipeline.paths import ROOT

PACKAGES = (
    *("torch==2.11.0", "triton==3.6.0", "numpy==2.3.5", "safetensors==0.8.0"),
    *("hypothesis==6.170.17", "pytest==9.2.0", "pytest-xdist==3.8.0"),
)


@pytest.fixture(scope="session")
def clean_python():
    """Python 3.12 with the packages of docs/gpu.md and no others: what CLEAN_PYTHON names, or else it is made once."""
    python = os.environ.get("CLEAN_PYTHON") or made_python()
    program = "from importlib.util import find_spec; print(find_spec('torch') and not find_spec('pydantic'))"
    found = subprocess.run([python, "-c", program], capture_output=True, text=True, cwd="/").stdout.strip()
    assert found == "True", f"{python} has no torch, or it has pydantic"
    return python


def made_python():
    folder = ROOT / "build/clean_python"
    python, finished = folder / "bin/python", folder / "finished"
    if finished.exists() and finished.read_text() == str(PACKAGES):
        return python
    candidates = [shutil.which("python3.12"), *sorted((Path.home() / ".pyenv/versions").glob("3.12*/bin/python"))]
    works = (base for base in filter(None, candidates) if not subprocess.run([base, "-c", ""]).returncode)
    if (base := next(works, None)) is None:  # pyenv's name of a Python that is not in use fails
        pytest.skip("there is no Python 3.12 here, and CLEAN_PYTHON names none")
    uv = load_uv()
    try:
        uv.make(folder, str(base))
        uv.install(folder, ["pip", "install", *uv.index, "pip", *PACKAGES])
    except SystemExit as error:
        pytest.skip(f"the packages of a clean Python cannot be installed: {error}")
    finished.write_text(str(PACKAGES))
    return python
