"""The virtual environment that a script runs in: made when missing, entered otherwise.

Owns: which environment belongs to which requirement file, and whether it is whole. Knows nothing
of what runs in it. Standard library only; any Python from 3.8 gets far enough to say what it lacks.

    from _environment import ensure
    ensure("cpu")  # before any other import of a script
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# dev is cpu and more, in the same folder; the others pin what cannot live beside it.
ENVIRONMENTS = {
    "cpu": ".venv",
    "dev": ".venv",
    "awq": ".venv-awq",
    "vllm": ".venv-vllm",
    "llama": ".venv-llama",
}


def ensure(name: str) -> None:
    """Come back inside environment `name`; install it first if its requirement files changed.

    Exits with a message when that cannot be done. Costs milliseconds when all is there.
    """
    venv = prepare(name)
    # Programs started by name come from there too: the Cog server starts its worker as bare `python`.
    first, path = f"{venv / 'bin'}{os.pathsep}", os.environ.get("PATH", os.defpath)
    os.environ.update(VIRTUAL_ENV=str(venv), PATH=path if path.startswith(first) else first + path)
    if Path(sys.prefix).resolve() != venv.resolve():
        _enter(venv)


def prepare(name: str) -> Path:
    """The folder of environment `name`, installed if need be."""
    if name not in ENVIRONMENTS:
        sys.exit(f"Unknown environment {name!r}; there are {', '.join(ENVIRONMENTS)}.")
    venv = ROOT / ENVIRONMENTS[name]
    if not is_current(venv, name):
        from _install import install  # threads, subprocess: only the first call pays for them

        install(venv, name)
    return venv


def _enter(venv: Path) -> None:
    """Run this script again with the Python of `venv`, in the same process."""
    entered = f"{os.getpid()} {venv}"
    if os.environ.get("_ENTERED_VENV") == entered:
        sys.exit(f"{venv} starts a Python outside itself. Unset PYTHONHOME, or delete the folder.")
    os.environ["_ENTERED_VENV"] = entered
    python = str(venv / "bin" / "python")
    os.execv(python, [python, *sys.argv])


def is_current(venv: Path, name: str) -> bool:
    """Whether `venv` was installed completely from what the requirement files of `name` say now."""
    return (venv / "bin" / "python").exists() and read_state(venv).get(name) == digest(name)


def read_state(venv: Path) -> dict[str, str]:
    """Environment name → digest of what is installed; {"installing": name} while that goes on."""
    try:
        return dict(json.loads((venv / "installed.json").read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def digest(name: str) -> str:
    """A hash of every file that says what belongs into environment `name`."""
    files = [*included(name), *requirement_files(name)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def included(name: str) -> list[Path]:
    """The files that requirements/NAME.txt starts from (`-r cpu.txt`)."""
    file = requirement_files(name)[0]
    lines = file.read_text("utf-8").splitlines()
    return [file.parent / line[3:].strip() for line in lines if line.startswith("-r ")]


def requirement_files(name: str) -> list[Path]:
    """requirements/NAME.txt, and NAME.no-deps.txt where there is one; in order of installing."""
    file = ROOT / "requirements" / f"{name}.txt"
    if not file.exists():
        sys.exit(f"requirements/{name}.txt is missing in {ROOT}.")
    no_deps = file.with_suffix(".no-deps.txt")
    return [file, no_deps] if no_deps.exists() else [file]
