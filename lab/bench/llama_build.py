"""llama.cpp built on this machine for its CPU, and checkpoints as GGUF files for it.

Its sources come with the source distribution of llama-cpp-python. A generic wheel leaves out what this CPU has (AVX512,
VNNI, AMX), so that a comparison with one would be unfair.

    server = built_program("llama-server")
    export(Path("weights/unquantized"), folder, "Q4_0")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Final

from lab.bench.machine import describe_machine
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT
from pipeline.weights.atomic import partial_file
from serving.devices import available_cores

MODEL: Final = "model.gguf"
VERSION: Final = "0.3.36"
_SHA256: Final = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_CPU: Final = f"{zlib.crc32(' '.join(describe_machine()['flags']).encode()):08x}"  # it may not run on another CPU
_HOME: Final = ROOT / "build" / "bench" / f"llama-{VERSION}-{_CPU}"
_SOURCES: Final = _HOME / "sources" / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
_PROGRAMS: Final = ("llama-server", "llama-quantize")
# No web page and no HTTPS, which would need further downloads. Linked statically, so that programs need no other file.
_OPTIONS: Final = (
    *("BUILD_SHARED_LIBS=OFF", "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_OPENSSL=OFF"),
    *(f"LLAMA_{part}=OFF" for part in ("BUILD_APP", "BUILD_EXAMPLES", "BUILD_TESTS", "BUILD_UI", "USE_PREBUILT_UI")),
)


def built_program(name: str) -> Path:
    """One of `llama-server` and `llama-quantize`; the first call builds them, which takes a quarter of an hour.

    Raises:
        OSError, CalledProcessError: the sources cannot be fetched or built; the output is on stderr.
    """
    program = _HOME / "build" / "bin" / name
    if not program.exists():
        _fetch_sources()
        build = _HOME / "build"
        _run("cmake", "-G", "Ninja", "-S", _SOURCES, "-B", build, *(f"-D{option}" for option in _OPTIONS))
        _run("cmake", "--build", build, "--parallel", available_cores(), "--target", *_PROGRAMS)
    return program


def export(checkpoint: Path, folder: Path, kind: str) -> None:
    """Write an unquantized checkpoint as model.gguf, and the files that the bench reads beside it.

    `kind` is the quantization, as llama-quantize names it.

    Raises:
        OSError, CalledProcessError: it cannot be converted; the output is on stderr.
    """
    quantize = built_program("llama-quantize")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary, partial_file(folder / MODEL) as quantized:
        whole = Path(temporary) / "whole.gguf"
        _run(sys.executable, _SOURCES / "convert_hf_to_gguf.py", checkpoint, "--outfile", whole, PYTHONPATH=_packages())
        _run(quantize, whole, quantized, kind, available_cores())
    for name in ("tokenizer.json", "generation_config.json", "config.json"):
        if (checkpoint / name).exists():
            shutil.copyfile(checkpoint / name, folder / name)


def _fetch_sources() -> None:
    if _SOURCES.exists():
        return
    _HOME.mkdir(parents=True, exist_ok=True)
    pin = _HOME / "pin.txt"
    pin.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{_SHA256}\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-input")
    where = ("--require-hashes", "-r", pin, "-d", _HOME)
    _run(*pip, "--no-binary=:all:", "--no-build-isolation", *where, PYTHONPATH=_packages())
    with tempfile.TemporaryDirectory(dir=_HOME) as temporary, tarfile.open(next(_HOME.glob("*.tar.gz"))) as archive:
        archive.extractall(temporary, filter="data")
        Path(temporary).rename(_SOURCES.parents[2])
        Path(temporary).mkdir()  # which is removed


def _environment() -> Path:
    try:
        return installed_environment("llama")
    except SystemExit as error:  # the exit of a script
        raise OSError(f"the environment llama cannot be made: {error}") from error


def _packages() -> str:
    """Packages that the sources' setup and converter import beside ours."""
    return os.pathsep.join(map(str, _environment().glob("lib/*/site-packages")))


def _run(*command: object, **env: str) -> None:
    """Run a command with the environment's programs first; its output goes to stderr."""
    path = f"{_environment() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    arguments = [str(part) for part in command]
    subprocess.run(arguments, check=True, stdout=sys.stderr, env={**os.environ, "PATH": path, **env})
