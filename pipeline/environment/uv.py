"""Fetches the pinned uv with pip and runs it with pip's settings; without a GPU it installs PyTorch for CPUs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Sequence  # noqa: UP035 – subscripting collections.abc needs Python 3.9

from pipeline.paths import CODE, ROOT
from serving.devices import has_cuda_device

REQUIREMENT = CODE / "requirements" / "uv.txt"
# pip's setting → uv's option, and uv's own environment variables, which take precedence
_OPTIONS = {
    "index-url": ("--default-index", ("UV_DEFAULT_INDEX", "UV_INDEX_URL")),
    "extra-index-url": ("--index", ("UV_INDEX", "UV_EXTRA_INDEX_URL")),
    "find-links": ("--find-links", ("UV_FIND_LINKS",)),
    "trusted-host": ("--allow-insecure-host", ("UV_INSECURE_HOST",)),
}
_VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}
_CPU = "--torch-backend=cpu"
_WHERE = "into a folder that pip's find-links names, or its index into pip's extra-index-url"


class Uv:
    """Runs uv with the package indexes that pip is configured to use.

    Args:
        pip: pip's settings, from `read_pip_settings`; uv's own configuration files are not read.
    """

    def __init__(self, program: Path, pip: dict[str, str]) -> None:
        self.program = program
        self.index = index_options(pip, dict(os.environ))
        found = {variable: pip[name] for name, variable in _VARIABLES.items() if name in pip}
        own = {} if _has_cache() else {"UV_CACHE_DIR": str(ROOT / "build" / "uv-cache")}
        self._environment = {**own, **found, **os.environ}

    def make(self, venv: Path, base: str) -> None:
        """Make an empty environment, replacing an existing one. Exits if that fails."""
        self._run(["venv", "--quiet", "--clear", "--no-python-downloads", "--python", base, str(venv)])

    def plan(self, file: Path, base: str) -> list[str]:
        """The uv arguments that install a requirement file, after checking that all packages can be found.

        Changes nothing and downloads only metadata. Exits if a package cannot be found.
        """
        command = ["pip", "install", *self.index, "-r", str(file)]
        resolving = ["--python", base]
        if file.stem.endswith(".no-deps"):
            self.resolve(file, options=[*resolving, "--no-deps"])
            return [*command, "--no-deps", "--no-build-isolation"]
        if has_cuda_device() or not _find_cuda(self.resolve(file, options=resolving)):
            return command
        sys.stderr.write(
            "This machine has no GPU, so PyTorch's CPU build is installed from PyTorch's own index. If that index "
            f"cannot be reached, put the build {_WHERE}.\n"
        )
        if cuda := _find_cuda(self.resolve(file, options=[*resolving, _CPU])):
            sys.exit(f"{file} would install {', '.join(cuda)}, which needs a GPU. Put PyTorch's CPU build {_WHERE}.")
        return [*command, _CPU]

    def install(self, venv: Path, plan: list[str]) -> None:
        """Run the arguments that `plan` returned, with uv's progress on stderr. Exits if that fails."""
        self._run([*plan, "--python", str(venv / "bin" / "python")])

    def resolve(self, *files: Path, options: Sequence[str] = ()) -> list[str]:
        """All packages that these files need, as `name==version`; downloads only metadata. Exits if that fails."""
        command = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", *self.index, *options]
        text = self._run([*command, *map(str, files)], capture=True)
        return [line for line in text.splitlines() if "==" in line]

    def hashes(self, file: Path, *, with_deps: bool) -> str:
        """The file's pins with the hashes of all their files, for --require-hashes; downloads only metadata.

        Only the default index is asked: pip's other sources may have builds of this machine without hashes. Exits if
        that fails.

        Args:
            with_deps: whether to add what the packages need in the image: on Linux, x86-64, Python 3.11.
        """
        command = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
        place = self.index.index("--default-index") if "--default-index" in self.index else None
        command += [] if place is None else self.index[place : place + 2]
        platform = ["--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu"]
        return self._run([*command, *platform, *([] if with_deps else ["--no-deps"]), str(file)], capture=True)

    def _run(self, arguments: list[str], capture: bool = False) -> str:
        command = [str(self.program), *arguments, "--no-config"]
        output = subprocess.PIPE if capture else 2  # 2: stderr; stdout is for the script's result
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, text=True
        )
        if done.returncode:
            sys.exit(f"This failed: {' '.join(command)}\nFix the cause above and run this again.")
        return done.stdout or ""


def fetch_uv(base: str) -> Uv:
    """The pinned uv in build/; if missing, installed there with the pip of Python `base`. Exits if that fails."""
    pin = REQUIREMENT.read_text("utf-8").split("#")[0].strip()
    folder = ROOT / "build" / pin.replace("==", "-")
    python, program = folder / "bin" / "python", folder / "bin" / "uv"
    if not _is_whole(program):
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        for command in (
            [base, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", *quiet, "-r", str(REQUIREMENT)],
        ):
            if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2).returncode:
                sys.exit(f"This failed: {' '.join(command)}\nFix the cause above and run this again.")
    return Uv(program, read_pip_settings(str(python)))


def _find_cuda(resolved: Sequence[str]) -> list[str]:
    return [line for line in resolved if line.startswith(("nvidia-", "cuda-"))]


def _has_cache() -> bool:
    """Whether uv's default cache folder can be written; uv does not start without a cache."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return False
    return os.access(str(folder), os.W_OK)


def _is_whole(program: Path) -> bool:
    """Whether the program starts; an interrupted download may have left an incomplete file."""
    try:
        return subprocess.run([str(program), "--version"], stdout=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def read_pip_settings(python: str) -> dict[str, str]:
    """pip's settings by name, from its configuration files and PIP_ variables."""
    command = [python, "-m", "pip", "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.partition("=") for line in text.splitlines()]
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # later sections override earlier ones
        for key, _, value in lines:
            if key.startswith(section):
                found[key[len(section) :]] = str(ast.literal_eval(value))
    return found


def index_options(pip: dict[str, str], environment: dict[str, str]) -> list[str]:
    """uv's options for the package indexes that pip uses; uv's own environment variables take precedence."""
    options = ["--no-index"] if pip.get("no-index", "0").lower() in ("1", "true", "yes", "on") else []
    for name, (option, variables) in _OPTIONS.items():
        if not any(variable in environment for variable in variables):
            options += [word for value in pip.get(name, "").split() for word in (option, value)]
    if "--index" in options:
        options.append("--index-strategy=unsafe-best-match")  # like pip: the best version of all indexes
    return options
