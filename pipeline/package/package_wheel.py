"""Writes this project's code as one versioned file, a wheel, which a package has beside its predict.py.

The same code gives the same bytes. Below the usual contents the wheel has what the commands need: scripts/ and
requirements/. A package unpacks it (`templates/package.py`); `pip install` takes it too.

Another wheel has the drafter for vLLM, its trainer, and what these import, for people who serve with vLLM alone.
"""

from __future__ import annotations

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

from pipeline.paths import CODE

_WHOLE: Final = ("serving", "tasks", "gateway", "pipeline")
_REQUIREMENTS: Final = ("cpu", "image", "uv", "vllm", "vllm-suffix")  # of the environments that the commands make
COMMANDS: Final = ("predict", "serve", "batch", "keys", "precompute", "push", "lock_weights", "write_schema")
WHEELS: Final = "model_package-*.whl"  # the names of all versions
_DATA: Final = ("serving/kernels/cpp", "examples/drafts")  # sources of kernels, and draft models to start from
# The classes that vLLM is given by name, the trainer, and what vLLM does not bring.
_PLUG_IN: Final = ("serving.engines.vllm.draft_worker", "serving.engines.vllm.grammar_scheduler")
_TRAINER: Final = "pipeline.train.log_drafter"
_NEEDS: Final = (
    *("jinja2", "jsonschema", "llguidance>=1.7,<1.8", "numpy", "pydantic", "rich", "safetensors", "tokenizers"),
    *("torch", "transformers", "typer"),
)
_COMMANDS: Final = f"[console_scripts]\ntrain-drafter = {_TRAINER}:run\n"
_TIME: Final = (1980, 1, 1, 0, 0, 0)  # of each file in the archive


def write_wheel(folder: Path) -> Path:
    """Write the wheel into a folder, and return its path.

    Its name has the project's version and a digest of the code: `NAME-VERSION+DIGEST-py3-none-any.whl`.
    """
    project = tomllib.loads((CODE / "pyproject.toml").read_text("utf-8"))["project"]
    assert WHEELS.startswith(f"{project['name'].replace('-', '_')}-"), "packages find the wheel by this name"
    return _write(folder, project["name"], project["description"], _files())


def write_vllm_wheel(folder: Path) -> Path:
    """Write the wheel of the drafter for vLLM into a folder, and return its path. vLLM brings most that it needs."""
    finder = ModuleFinder([str(CODE)])
    for module in (*_PLUG_IN, _TRAINER):
        finder.import_hook(module)
    files = [Path(file) for module in finder.modules.values() if (file := getattr(module, "__file__", None))]
    for part in _DATA:
        files += [path for path in (CODE / part).rglob("*") if path.is_file()]
    return _write(folder, "vllm-drafts", "Drafts for speculative decoding in vLLM", files, _NEEDS, _COMMANDS)


def _write(
    folder: Path, title: str, summary: str, files: Iterable[Path], needs: Sequence[str] = (), commands: str = ""
) -> Path:
    contents = {path.relative_to(CODE).as_posix(): path.read_bytes() for path in files}
    project = tomllib.loads((CODE / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = title.replace("-", "_"), f"{project['version']}+{_digest(contents)}"
    info = f"{name}-{version}.dist-info"
    contents[f"{info}/licenses/LICENSE"] = (CODE / "LICENSE").read_bytes()
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {title}\nVersion: {version}\nSummary: {summary}\n"
        + f"Requires-Python: {project['requires-python']}\nLicense-File: LICENSE\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs)
    ).encode()
    if commands:
        contents[f"{info}/entry_points.txt"] = commands.encode()
    contents[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: new_package\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in sorted(contents.items())]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(path, _TIME), data, zipfile.ZIP_DEFLATED)
    return wheel


def _files() -> Iterator[Path]:
    for folder in _WHOLE:
        for path in (CODE / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".partial":
                yield path
    for name in _REQUIREMENTS:
        yield from (CODE / "requirements").glob(f"{name}.*txt")
    yield from (CODE / "scripts" / name for name in (*COMMANDS, "_environment.py"))


def _digest(contents: dict[str, bytes]) -> str:
    lines = (f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(contents.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:8]


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
