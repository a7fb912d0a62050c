"""Makes the virtual environment that a script needs, and runs the script in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pipeline.environment.pins import BUILT_ON, ENVIRONMENTS, is_current
from pipeline.paths import CODE, ENVIRONMENT, ROOT
from serving.devices import has_cuda_device


def ensure(name: str, for_help: str | None = None) -> None:
    """Restart the script inside environment `name`, which is installed first if its requirement files changed.

    Takes milliseconds if the environment is complete. Exits with a message if it cannot be installed.

    Args:
        for_help: a smaller one, which is enough for --help; None for none.
    """
    venv = installed_environment(for_help if for_help and "--help" in sys.argv[1:] else name)
    # Programs that are started by name must come from the environment too: Cog's server starts its worker as `python`.
    first, path = f"{venv / 'bin'}{os.pathsep}", os.environ.get("PATH", os.defpath)
    os.environ.update(VIRTUAL_ENV=str(venv), PATH=path if path.startswith(first) else first + path)
    # uv does not compile to bytecode; the first import does. With this variable set, every start would compile again,
    # which takes 3 s for torch.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if Path(sys.prefix).resolve() != venv.resolve():
        _enter(venv)
    for folder in (ROOT, CODE):  # so that the code, and a package's predict.py, can be imported
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    if CODE != ROOT:
        os.environ.update(ENVIRONMENT)


def ensure_for_engine(option: str | None, on_ray: bool = False) -> None:
    """`ensure` the environment of the engine that `option` or else $ENGINE names, and store the name in $ENGINE.

    With `on_ray`, that is Ray's, which has all engines but vLLM.
    """
    engine = option or os.environ.get("ENGINE") or "auto"
    os.environ["ENGINE"] = engine
    uses_gpu = os.environ.get("DEVICE") not in ("cpu", "triton-interpreter") and has_cuda_device()
    has_vllm = uses_gpu and is_current(ROOT / ENVIRONMENTS["vllm-gpu"], "vllm-gpu")
    ensure("ray" if on_ray else environment(engine, os.environ.get("SPECULATION"), uses_gpu, has_vllm))


def environment(engine: str, speculation: str | None, uses_gpu: bool, has_vllm: bool) -> str:
    """The environment that an engine needs. That of vLLM for GPUs is large: `auto` does not install it, but uses it.

    Args:
        engine: its name, as ENGINE has it.
        speculation: the setting SPECULATION.
        uses_gpu: whether there is a GPU that DEVICE does not leave idle.
        has_vllm: whether vLLM's environment for GPUs is installed.
    """
    if engine == "vllm" and speculation == "suffix":
        return "vllm-suffix"  # has vLLM's CPU build
    if engine == "vllm":
        return "vllm-gpu" if uses_gpu else "vllm"
    return "vllm-gpu" if engine == "auto" and uses_gpu and has_vllm else "cpu"


def installed_environment(name: str) -> Path:
    """The folder of environment `name`, installed if need be."""
    if name not in ENVIRONMENTS:
        sys.exit(f"Unknown environment {name!r}; there are {', '.join(ENVIRONMENTS)}.")
    if name in BUILT_ON:
        installed_environment(BUILT_ON[name])
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
