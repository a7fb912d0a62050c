"""Makes the virtual environment that a script needs, and runs the script in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pipeline.environment.pins import BUILT_ON, ENVIRONMENTS, is_current
from pipeline.paths import ROOT
from serving.devices import has_cuda_device


def ensure(name: str) -> None:
    """Restart the script inside environment `name`, which is installed first if its requirement files changed.

    Takes milliseconds if the environment is complete. Exits with a message if it cannot be installed.
    """
    venv = prepare(name)
    # Programs that are started by name must come from the environment too: Cog's server starts its worker as `python`.
    first, path = f"{venv / 'bin'}{os.pathsep}", os.environ.get("PATH", os.defpath)
    os.environ.update(VIRTUAL_ENV=str(venv), PATH=path if path.startswith(first) else first + path)
    # uv does not compile to bytecode; the first import does. With this variable set, every start would compile again,
    # which takes 3 s for torch.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if Path(sys.prefix).resolve() != venv.resolve():
        _enter(venv)
    if str(ROOT) not in sys.path:  # so that the repository's packages can be imported
        sys.path.insert(0, str(ROOT))


def ensure_for_engine(option: str | None, on_ray: bool = False) -> None:
    """`ensure` the environment of the engine that `option` or else $ENGINE names, and store the name in $ENGINE.

    With `on_ray`, that is Ray's, which has all engines but vLLM.

    These environments have no vLLM for GPUs, so `auto` never chooses it here. In the image it does. The paged engine
    then runs on the CPU, unless $DEVICE says otherwise.
    """
    engine = option or os.environ.get("ENGINE") or "auto"
    if engine == "auto" and has_cuda_device():
        engine = "paged"
        if os.environ.get("DEVICE", "") in ("", "auto"):
            os.environ["DEVICE"] = "cpu"
            sys.stderr.write(
                "This machine has a GPU, but this command runs ENGINE=paged on the CPU. Cog's image uses the GPU.\n"
            )
    os.environ["ENGINE"] = engine
    vllm = "vllm-suffix" if os.environ.get("SPECULATION") == "suffix" else "vllm"
    ensure("ray" if on_ray else vllm if engine == "vllm" else "cpu")


def prepare(name: str) -> Path:
    """The folder of environment `name`, installed if need be."""
    if name not in ENVIRONMENTS:
        sys.exit(f"Unknown environment {name!r}; there are {', '.join(ENVIRONMENTS)}.")
    if name in BUILT_ON:
        prepare(BUILT_ON[name])
    venv = ROOT / ENVIRONMENTS[name]
    if not is_current(venv, name):
        from pipeline.environment.install import install  # slow to import, and only needed to install

        install(venv, name)
    return venv


def _enter(venv: Path) -> None:
    """Replace this process by the same script under the Python of `venv`."""
    entered = f"{os.getpid()} {venv}"
    if os.environ.get("_ENTERED_VENV") == entered:
        sys.exit(f"{venv} starts a Python that is not in this folder. Unset PYTHONHOME, or delete the folder.")
    os.environ["_ENTERED_VENV"] = entered
    python = str(venv / "bin" / "python")
    os.execv(python, [python, *sys.argv])
