"""Compile the C++ kernels at first use, and cache the library by source, flags, compiler and CPU."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_log = logging.getLogger(__name__)
SOURCES = Path(__file__).parent / "cpp"
FLAGS = (  # every build has these
    *("-std=c++17", "-O3", "-march=native", "-pthread"),
    "-ffp-contract=off",  # multiply-add is fused only where the source calls fma()
    "-fno-schedule-insns",  # GCC's default on ARM, where it needs more registers than there are
    *("-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wno-ignored-attributes", "-Wno-psabi"),
)
_COMPILERS = ("g++", "c++", "clang++")
_TIMEOUT = 300.0  # seconds


def build_library(extra_flags: tuple[str, ...] = (), cache: Path | None = None) -> Path | None:
    """Path of the compiled kernels; None, with a warning in the log, without a compiler or if it fails.

    The extra flags follow the usual ones. `cache` is the library's folder; by default one in the user's cache folder.
    """
    compiler = find_compiler()
    if compiler is None:
        _log.warning("no C++ compiler (%s): using the slower torch kernels", ", ".join(_COMPILERS))
        return None
    flags = (*FLAGS, *extra_flags)
    folder = _cache_folder() if cache is None else cache
    library = folder / f"cpu-{_fingerprint(compiler, flags)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _compile(compiler, flags, library)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        _log.warning("compiling the kernels failed (%s): using the slower torch kernels", _first_line(reason))
        return None
    return library


def find_compiler() -> str | None:
    """Path of $CXX, or of the first known compiler on the PATH; None if there is none."""
    names = (os.environ.get("CXX"), *_COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    """Compile to a temporary file and rename it, so that no process loads a half-written library."""
    handle, partial = tempfile.mkstemp(dir=library.parent, suffix=".partial")
    os.close(handle)
    try:
        command = [compiler, *flags, str(SOURCES / "cpu.cpp"), "-o", partial]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT)
        Path(partial).replace(library)
    finally:
        Path(partial).unlink(missing_ok=True)


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    binary = Path(compiler).resolve()
    for part in (*flags, str(binary), str(binary.stat().st_mtime_ns), _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """The lines of /proc/cpuinfo that -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    keys = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(keys)}))


def _cache_folder() -> Path:
    """~/.cache/lm-serving-kernels, or a new temporary folder if that cannot be written to."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm-serving-kernels"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="lm-serving-kernels-"))
    return base if os.access(base, os.W_OK) else Path(tempfile.mkdtemp(prefix="lm-serving-kernels-"))


def _first_line(text: str | bytes) -> str:
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    lines = [line for line in decoded.splitlines() if "error" in line.lower()] or decoded.splitlines()
    return lines[0] if lines else "no message"
